"""What `sightline geometry` found, from its file, as sections of another page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.outside import read_json
from train.evaluate.geometry import Geometry
from train.evaluate.similarity import Correlation, GradedPairs
from train.evaluate.space import (
    MapSentences,
    MapSettings,
    ModelSpace,
    SentenceMap,
    SpaceStudy,
    Spectrum,
)
from train.report.html import Section
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
