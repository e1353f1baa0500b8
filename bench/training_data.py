"""Data to train on, drawn and written to disk as `sightline` leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from drawn import feature_set
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    PhraseTokenHeader,
    TokenHeader,
    as_keys,
    key_of_text,
    keys_of_texts,
    pair_keys,
    whole_files,
    write_manifest,
    write_phrase_tokens,
    write_tokens,
)
from sightline.cache.keys import Keys
from sightline.sentence_transformers_folder import tokenizer_sha256
from train.data import TrainingData
from train.objectives import make_objective
from train.run_spec import RunSpec

LONGEST = 32
"""Tokens of a training text."""
PHRASES_EACH = 4
FEATURES = {
    "image-resnet": 2048,
    "image-clip": 512,
    "text-clip": 512,
    "teacher-simcse": 768,
    "teacher-diffcse": 768,
    "object-clip": 512,
}
"""Feature sets, each named by its kind and encoder, and their widths."""
TEACHERS = [{"encoder": "simcse", "weight": 0.33}, {"encoder": "diffcse", "weight": 0.67}]
SYSTEMS: dict[str, dict[str, Any]] = {
    "simcse": {},
    "mcse": {"image": "resnet"},
    "kdmcse": {"image": "clip", "text": "clip"},
    "dalr": {"image": "clip", "teachers": TEACHERS},
    "mcseo": {"image": "clip"},
}
"""Each objective with its parameters."""


def texts(
    words: list[str], count: int, mean: float, spread: float, seed: int
) -> tuple[list[str], list[list[int]]]:
    """Distinct texts with normal lengths, and their ids in `word_tokenizer`."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(mean, spread, count), 5, 60).astype(int)
    chosen = np.split(rng.integers(0, len(words), lengths.sum()), np.cumsum(lengths)[:-1])
    ids_of: dict[str, list[int]] = {}
    for number, some in enumerate(chosen):
        # the first words count, so that no two texts are equal
        numbers = [number % len(words), number // len(words), *some.tolist()[2:]]
        text = " ".join([words[each] for each in numbers])
        ids_of[text] = [2, *(each + 4 for each in numbers[: LONGEST - 2]), 3]
    assert len(ids_of) == count
    return list(ids_of), list(ids_of.values())


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Words as tokens, [CLS] and [SEP] around them: a real fast tokenizer without a download."""
    ids = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    ids |= {word: number for number, word in enumerate(words, len(ids))}
    tokenizer: Any = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


class World:
    """Pairs and plain sentences: manifests, token ids, phrase tokens and feature sets, on disk.

    Lengths are spread as in Flickr30k and in Wikipedia; a caption has an image of its own and about
    four phrases.

    Attributes:
        captions, sentences: the texts of the two streams.
        tokenizer: the one that made their token ids; `digest`: of it.
    """

    def __init__(self, folder: Path, sentences: int, pairs: int, words: int) -> None:
        self.folder = folder
        vocabulary = [f"w{number}" for number in range(words)]
        self.tokenizer = word_tokenizer(vocabulary)
        self.captions, ids = texts(vocabulary, pairs, 12.3, 5.2, 1)
        self.sentences, of_sentences = texts(vocabulary, sentences, 21.0, 10.0, 2)
        found: Any = self.tokenizer(self.captions[:64], truncation=True, max_length=LONGEST)
        assert found["input_ids"] == ids[:64], "the ids are not the tokenizer's"
        self.digest = tokenizer_sha256(self.tokenizer)
        header = TokenHeader(self.digest, LONGEST, 0, len(self.tokenizer))
        images = as_keys([key_of_text(f"image {number}") for number in range(pairs)])
        names, splits = [f"{number:07}.jpg" for number in range(pairs)], [""] * pairs
        self._manifest(
            CAPTIONS,
            "captions",
            {"caption_id": names, "image_id": names, "text": self.captions, "split": splits},
        )
        columns = {"image_id": names, "path": names, "key": [key.tobytes() for key in images]}
        sizes = {"width": [1] * pairs, "height": [1] * pairs, "split": splits}
        self._manifest(IMAGES, "images", {**columns, **sizes, **whole_files(pairs)})
        self._manifest(SENTENCES, "sentences", {"text": self.sentences})
        keys = keys_of_texts(self.captions)
        write_tokens(folder / "tokens", header, keys, ids)
        write_tokens(folder / "text-tokens", header, keys_of_texts(self.sentences), of_sentences)
        objects = self._phrases(ids, images, keys)
        of_kind = {"image": images, "object": objects, "text": keys, "teacher": keys}
        for name, dim in FEATURES.items():
            kind = name.partition("-")[0]
            feature_set(folder / name, kind, of_kind[kind], dim)

    def _phrases(self, ids: Sequence[list[int]], images: Keys, keys: Keys) -> Keys:
        """Write phrase tokens; returns the keys of their objects."""
        rows = np.repeat(np.arange(len(ids)), PHRASES_EACH)
        ends = np.array([len(each) - 1 for each in ids])[rows]
        starts = np.random.default_rng(0).integers(1, ends)
        objects = as_keys([key_of_text(f"object {number}") for number in range(len(rows))])
        header = PhraseTokenHeader(self.digest, LONGEST, len(rows))
        pairs, ends = pair_keys(images[rows], keys[rows]), np.minimum(starts + 2, ends)
        path = self.folder / "phrases"
        write_phrase_tokens(path, header, pairs, objects, starts.tolist(), ends.tolist())
        return objects

    def _manifest(self, schema: pa.Schema, name: str, columns: dict[str, Any]) -> None:
        table = pa.table(columns, schema=schema)
        write_manifest(self.folder / f"{name}.parquet", table, schema)

    def spec(
        self, system: str, batch_size: int, streams: Sequence[str] = ("pairs", "text"), **given: Any
    ) -> RunSpec:
        """A run of ``system`` over some of the streams; ``given`` are further fields."""
        needs = make_objective(system, SYSTEMS[system]).features
        pairs = {name: self.folder / f"{name}.parquet" for name in ("captions", "images")}
        pairs["tokens"] = self.folder / "tokens"
        if any(need.row_of == "object" for need in needs):
            pairs["phrases"] = self.folder / "phrases"
        text = {"sentences": self.folder / "sentences.parquet"}
        text["tokens"] = self.folder / "text-tokens"
        body = {
            "run": system,
            "student": {"name": "bench", "model": "bench", "max_length": LONGEST},
            "train": {"batch_size": batch_size, "learning_rate": 3e-5},
            "objective": system,
            "parameters": SYSTEMS[system],
            "pairs": pairs if "pairs" in streams else None,
            "text": text if "text" in streams else None,
            "features": {need.name: self.folder / need.name for need in needs},
            "out": self.folder / "run",
        }
        return RunSpec.model_validate({**body, **given})

    def data(self, spec: RunSpec) -> TrainingData:
        """The inputs of a run."""
        return TrainingData(spec, make_objective(spec.objective, spec.parameters))
