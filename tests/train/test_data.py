"""Batches from the cache, and one clear error for each missing input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import World, make_world
from pydantic import ValidationError

from sightline.cache import (
    CAPTIONS,
    SENTENCES,
    FeatureSet,
    TokenSet,
    key_of_text,
    keys_of_texts,
    read_manifest,
    write_manifest,
    write_tokens,
)
from sightline.cache.caption_choice import choose_captions
from sightline.errors import SightlineError
from train.data import TrainingData
from train.objectives import make_objective
from train.run_spec import PairSource, TrainConfig


def load(world: World, objective: str = "mcse", **changes: Any) -> TrainingData:
    spec = world.spec(world.root / "unused", objective, **changes)
    return TrainingData(spec, make_objective(spec.objective, spec.parameters))


def test_features_and_ids_of_a_batch_belong_to_its_texts(world: World) -> None:
    data = load(world)
    captions = read_manifest(world.root / "captions.parquet", CAPTIONS).to_pylist()
    image_of = {key_of_text(row["text"]): int(row["image_id"][:2]) for row in captions}
    features = FeatureSet.open(world.root / "features")
    tokens = TokenSet.open(world.root / "tokens")
    seen = 0
    for k in range(len(data)):
        batch = data[k]
        flat, lengths = tokens.gather(tokens.rows(batch.keys))
        assert batch.lengths.tolist() == lengths.tolist()
        inside = torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
        assert batch.input_ids[inside].tolist() == flat.tolist()
        assert (batch.input_ids[~inside] == tokens.header.pad_token_id).all()
        if batch.stream == "pairs":
            keys = [world.image_keys[image_of[key.tobytes()]] for key in batch.keys]
            expected = features.take(keys).astype(np.float32)
            assert torch.equal(batch.features["image-tiny-cnn"], torch.from_numpy(expected))
            seen += len(batch)
        else:
            assert batch.features == {}
    assert seen == 18  # the dev split's two images are excluded


def test_a_batch_seeds_its_own_draws(world: World) -> None:
    data = load(world)
    draws = [torch.rand(2, generator=data[k].generator()).tolist() for k in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_caption_policies() -> None:
    images = ["a", "a", "b", "a", "b"]
    texts = ["one two", "one two three", "x", "aaa bb cc", "y"]
    assert choose_captions(images, texts, "all", 0).tolist() == [0, 1, 2, 3, 4]
    assert choose_captions(images, texts, "longest", 0).tolist() == [1, 2]
    drawn = {tuple(choose_captions(images, texts, "random", seed).tolist()) for seed in range(40)}
    assert drawn == {tuple(sorted((a, b))) for a in (0, 1, 3) for b in (2, 4)}


def test_the_random_caption_depends_on_the_image_alone() -> None:
    alone = choose_captions(["b"] * 5, list("vwxyz"), "random", 3)
    among = choose_captions(["a", "a", *["b"] * 5], list("..vwxyz"), "random", 3)
    assert among[-1] - 2 == alone[0]


def test_pairs_whose_image_failed_are_dropped_and_counted(tmp_path: Path) -> None:
    data = load(make_world(tmp_path, failed=3))
    assert data.dropped_pairs == 3
    assert data.schedule.pairs == 15


def test_all_images_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SightlineError, match="the images of all 18 pairs"):
        load(make_world(tmp_path, failed=20))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"features": {}},
            r"a feature set for image-tiny-cnn \(image features of tiny-cnn f",
        ),
        ({"features": {"image-tiny-cnn": "nowhere"}}, "nowhere: no feature set here"),
        ({"features": {"image-tiny-cnn": "F", "audio": "F"}}, "does not read features for audio"),
        ({"pairs": None}, "needs pairs"),
        ({"student": {"max_length": 12}}, "truncated to 16 tokens"),
    ],
)
def test_mismatched_inputs_are_one_error(world: World, changes: dict, message: str) -> None:
    if "features" in changes:
        real = {"F": world.root / "features"}
        changes = {"features": {k: real.get(v, v) for k, v in changes["features"].items()}}
    with pytest.raises(SightlineError, match=message):
        load(world, "mcse", **changes)


def test_an_unknown_objective_lists_the_available_ones() -> None:
    with pytest.raises(
        SightlineError, match=r"unknown objective 'clip'.* \(available: .*mcse.*simcse"
    ):
        make_objective("clip", {})


def with_captions(world: World, folder: Path, table: pa.Table) -> PairSource:
    """The stream of pairs with other captions."""
    write_manifest(folder / "captions.parquet", table, CAPTIONS)
    pairs = world.spec(folder).pairs
    assert pairs is not None
    return pairs.model_copy(update={"captions": folder / "captions.parquet"})


def test_missing_keys_are_counted(world: World, tmp_path: Path) -> None:
    table = read_manifest(world.root / "captions.parquet", CAPTIONS)
    row = {"caption_id": "x#0", "image_id": "00.png", "text": "never seen", "split": ""}
    table = pa.concat_tables([table, pa.Table.from_pylist([row], CAPTIONS)])
    parameters = {"caption": "all", "image": "tiny-cnn"}
    with pytest.raises(SightlineError, match="1 of 55 keys are missing"):
        load(world, "mcse", pairs=with_captions(world, tmp_path, table), parameters=parameters)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("test", "splits are 'test', expected 'train'"),
        ("train", r"too few rows to train on \(1\)"),  # one pair has no negatives
    ],
)
def test_too_few_captions_in_the_training_split(
    world: World, tmp_path: Path, first: str, message: str
) -> None:
    table = read_manifest(world.root / "captions.parquet", CAPTIONS)
    table = table.set_column(3, "split", pa.array([first] + ["test"] * (len(table) - 1)))
    with pytest.raises(SightlineError, match=message):
        load(world, "simcse", pairs=with_captions(world, tmp_path, table))


def test_a_run_has_epochs_or_steps() -> None:
    assert TrainConfig().epochs == 3
    assert TrainConfig(max_steps=5).epochs is None
    with pytest.raises(ValidationError, match="set only one of them"):
        TrainConfig(epochs=1, max_steps=5)


def test_streams_of_two_tokenizers_are_refused(world: World, tmp_path: Path) -> None:
    tokens = TokenSet.open(world.root / "tokens")
    texts = read_manifest(world.root / "sentences.parquet", SENTENCES).column("text").to_pylist()
    keys = keys_of_texts(texts)
    ids = [tokens.gather(tokens.rows(keys[row : row + 1]))[0].tolist() for row in range(len(keys))]
    header = replace(tokens.header, tokenizer_sha256="1" * 64)
    write_tokens(tmp_path / "other", header, keys, ids)
    text = {"sentences": world.root / "sentences.parquet", "tokens": tmp_path / "other"}
    with pytest.raises(SightlineError, match="made with different tokenizers; run `sightline tok"):
        load(world, "mcse", text=text)
