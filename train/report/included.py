"""What needs models, from the files of the commands that had them, as sections of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.outside import read_json
from train.evaluate.embedding_space import Spectrum
from train.evaluate.geometry import Geometry
from train.evaluate.map_sentences import MapSentences
from train.evaluate.similarity import Correlation, GradedPairs
from train.evaluate.space_study import MapSettings, ModelSpace, SentenceMap, SpaceStudy
from train.report.html import Section
from train.report.neighbours import Found, Neighbour, Sides, shown_images
from train.report.neighbours_page import Thumbnail, section_of
from train.report.space_page import RECORD, drawn_sections

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Pairs(_Read):
    name: str
    gold: Annotated[list[_Finite], Field(min_length=1)]


class _MapOf(_Read):
    sentences: str
    drawn_from: int
    clusters: Annotated[int, Field(gt=0)]
    perplexity: _Finite
    seed: int
    texts: list[str]
    groups: list[str] | None


class _Points(_Read):
    silhouette: _Finite
    clusters: list[Annotated[int, Field(ge=0)]]
    points: list[tuple[_Finite, _Finite]]


class _Model(_Read):
    model: str
    width: int
    spearman: Correlation
    geometry: Geometry
    mean_cosine: float
    effective_rank: _Finite
    singular_values: Annotated[list[_Finite], Field(min_length=1)]
    cosines: list[float | None]
    map: _Points | None
    no_map: str


class _Study(_Read):
    schema_: Annotated[Literal["sightline.geometry/1"], Field(alias="schema")]
    pairs: _Pairs
    map: _MapOf
    models: Annotated[list[_Model], Field(min_length=1)]

    @model_validator(mode="after")
    def _lengths_agree(self) -> _Study:
        pairs, texts = len(self.pairs.gold), len(self.map.texts)
        for each in self.models:
            drawn = each.map
            counts = (texts, texts) if drawn is None else (len(drawn.points), len(drawn.clusters))
            if len(each.cosines) != pairs or counts != (texts, texts):
                raise ValueError(f"{each.model}: not of {pairs} pairs and {texts} sentences")
            if drawn is not None and max(drawn.clusters, default=0) >= self.map.clusters:
                raise ValueError(f"{each.model}: a cluster of more than {self.map.clusters}")
        return self


class _Neighbour(_Read):
    text: str = ""
    captions: list[str] = []
    images: Annotated[list[str], Field(min_length=1)]
    cosine: _Finite
    own_image: bool


class _Query(_Read):
    text: str
    images: list[str]
    captions: dict[str, list[_Neighbour] | None]
    nearest_images: dict[str, list[_Neighbour] | None] = {}


class _Picture(_Read):
    uri: Annotated[str, Field(pattern=r"^(data:image/\w+;base64,[A-Za-z0-9+/=]*)?$")] = ""
    problem: str = ""


class _Sides(_Read):
    schema_: Annotated[Literal["sightline.neighbours/1"], Field(alias="schema")]
    pool: str
    k: int
    models: Annotated[list[str], Field(min_length=1)]
    queries: Annotated[list[_Query], Field(min_length=1)]
    notes: list[str]
    reasons: dict[str, str] = {}
    pictures: dict[str, _Picture] | None = None

    @model_validator(mode="after")
    def _every_model_answers(self) -> _Sides:
        models = set(self.models)
        for query in self.queries:
            if set(query.captions) != models or set(query.nearest_images) not in (models, set()):
                raise ValueError(f"{query.text!r}: not of the models {', '.join(self.models)}")
            if any(found is None for found in query.captions.values()):
                raise ValueError(f"{query.text!r}: a model has no captions")
            missing = [name for name, found in query.nearest_images.items() if found is None]
            if set(missing) - self.reasons.keys():
                raise ValueError(f"{query.text!r}: no images and no reason for {missing[0]}")
        if len({bool(query.nearest_images) for query in self.queries}) > 1:
            raise ValueError("only some queries have nearest images")
        return self


def geometry_sections(path: Path) -> list[Section]:
    """The sections of `sightline geometry`.

    Args:
        path: its folder, or the geometry.json in it.

    Raises:
        SightlineError: missing, or not such a file (names the place).
    """
    file = path / RECORD if path.is_dir() else path
    body = read_json(file, TypeAdapter(_Study), "geometry.json, written by sightline geometry")
    n, of = len(body.pairs.gold), body.map
    study = SpaceStudy(
        GradedPairs(body.pairs.name, ("",) * n, ("",) * n, np.array(body.pairs.gold)),
        MapSentences(
            of.sentences,
            tuple(of.texts),
            None if of.groups is None else tuple(of.groups),
            of.drawn_from,
        ),
        MapSettings(of.clusters, of.perplexity, of.seed),
    )
    study.models += map(_space, body.models)
    return drawn_sections(study)


def neighbours_section(path: Path) -> tuple[Section, str]:
    """The section of `sightline neighbours`, and the style sheet of its pictures.

    Args:
        path: what `sightline neighbours --json` printed; with its `--root`, it has pictures.

    Raises:
        SightlineError: missing, or not such a file (names the place).
    """
    body = read_json(path, TypeAdapter(_Sides), "what sightline neighbours --json prints")
    captions = {model: [query.captions[model] for query in body.queries] for model in body.models}
    images = (
        {model: [query.nearest_images[model] for query in body.queries] for model in body.models}
        if body.queries[0].nearest_images
        else {}
    )
    sides = Sides(
        tuple(query.text for query in body.queries),
        tuple(tuple(query.images) for query in body.queries),
        tuple(body.models),
        {model: _found(answers, "") for model, answers in captions.items()},
        {model: _found(answers, body.reasons.get(model, "")) for model, answers in images.items()},
        body.pool,
        body.k,
    )
    pictures = None
    if body.pictures is not None:
        pictures = {
            image: Thumbnail(found.uri, found.problem)
            if (found := body.pictures.get(image)) is not None
            else Thumbnail(problem=f"{image}: not in {path.name}")
            for image in shown_images(sides)
        }
    return section_of(sides, "Neighbours", pictures, body.notes)


def _space(model: _Model) -> ModelSpace:
    drawn = model.map
    return ModelSpace(
        model.model,
        model.width,
        model.spearman,
        model.geometry,
        np.array([np.nan if each is None else each for each in model.cosines]),
        model.mean_cosine,
        Spectrum(np.array(model.singular_values), model.effective_rank),
        None
        if drawn is None
        else SentenceMap(np.array(drawn.points), np.array(drawn.clusters), drawn.silhouette),
        model.no_map,
    )


def _found(answers: list[list[_Neighbour] | None], reason: str) -> Found:
    if any(each is None for each in answers):
        return Found(reason=reason)
    return Found(
        tuple(
            tuple(
                Neighbour(
                    each.text, tuple(each.captions), tuple(each.images), each.cosine, each.own_image
                )
                for each in answer or ()
            )
            for answer in answers
        )
    )
