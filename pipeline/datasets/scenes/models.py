"""Trains and writes the demo's models: two image encoders, a teacher and the untrained student."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.draw import draw
from pipeline.datasets.scenes.scene import Scene
from pipeline.datasets.scenes.similarity import GradedPair
from pipeline.datasets.scenes.source import ScenesSource
from pipeline.datasets.source import Progress
from pipeline.side_by_side import Send, side_by_side
from sightline.devices import compute_with
from sightline.extras import require

THREADS = 1  # of each model that is trained; a fixed number keeps the weights' bytes


def write_models(
    folder: Path,
    source: ScenesSource,
    pixels: NDArray[np.uint8],
    scenes: Sequence[Scene],
    captions: Sequence[Sequence[str]],
    pairs: Sequence[GradedPair],
    progress: Progress | None = None,
) -> None:
    """Train the frozen encoders on the training split, and write them and the student.

    Writes ``encoders/{resnet,clip}.{json,safetensors,provenance.json}``, ``encoders/teacher/``
    and ``student/`` below ``folder``. The encoders are trained side by side.

    Raises:
        SightlineError: torchvision or open_clip are not installed.
    """
    for library in ("open_clip", "torchvision"):
        # imported once, for all processes
        require(library, "the data set scenes, which trains its own encoders,")
    encoders = folder / "encoders"
    encoders.mkdir()
    seed = source.seed
    calls = {
        "training the ResNet": partial(
            _write_resnet, encoders, pixels, scenes, source.resnet_steps, seed
        ),
        "training the CLIP": partial(
            _write_clip, encoders, pixels, captions, source.clip_steps, seed
        ),
        "training the teacher": partial(_write_berts, folder, source, pairs),
    }
    total = source.resnet_steps + source.clip_steps + source.teacher_steps
    done: dict[str, int] = {}
    for name, step in side_by_side(calls):
        done[name] = step
        if progress is not None:
            progress("training the encoders", sum(done.values()), total, "steps")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors makes its files private


def _write_resnet(
    encoders: Path,
    pixels: NDArray[np.uint8],
    scenes: Sequence[Scene],
    steps: int,
    seed: int,
    done: Send,
) -> None:
    compute_with(THREADS)
    from safetensors.torch import save_file

    from pipeline.datasets.scenes.resnet import train_resnet

    edge = pixels.shape[1]
    singles = single_things(scenes)
    alone = np.stack([draw(scene, edge)[0] for scene in singles])
    weights = train_resnet(
        np.concatenate([pixels, alone]), [*scenes, *singles], steps=steps, seed=seed, done=done
    )
    save_file(weights, encoders / "resnet.safetensors")
    _write_json(encoders / "resnet.json", {"resize": edge, "crop": edge})
    _note(encoders / "resnet.provenance.json", "labels of", seed, steps)


def _write_clip(
    encoders: Path,
    pixels: NDArray[np.uint8],
    captions: Sequence[Sequence[str]],
    steps: int,
    seed: int,
    done: Send,
) -> None:
    compute_with(THREADS)
    from safetensors.torch import save_file

    from pipeline.datasets.scenes.clip import clip_config, train_clip

    save_file(
        train_clip(pixels, captions, steps=steps, seed=seed, done=done),
        encoders / "clip.safetensors",
    )
    _write_json(encoders / "clip.json", clip_config(pixels.shape[1]))
    _note(encoders / "clip.provenance.json", "captions of", seed, steps)


def _write_berts(
    folder: Path, source: ScenesSource, pairs: Sequence[GradedPair], done: Send
) -> None:
    compute_with(THREADS)
    from pipeline.datasets.scenes.student import new_bert, save
    from pipeline.datasets.scenes.teacher import train_teacher

    seed, steps = source.seed, source.teacher_steps
    save(folder / "encoders/teacher", train_teacher(pairs, steps=steps, seed=seed, done=done))
    _note(folder / "encoders/teacher/provenance.json", "similarity pairs of", seed, steps)

    student = new_bert(layers=source.student_layers, hidden=source.student_hidden, seed=seed)
    save(folder / "student", student)
    _note(folder / "student/provenance.json", "", seed, 0)


def single_things(scenes: Sequence[Scene]) -> list[Scene]:
    """Each thing of the training scenes alone in its place, as in a cut-out.

    Omits things that on their own would be a scene of another split.
    """
    alone = [Scene((placed,), scene.ground) for scene in scenes for placed in scene.things]
    return [scene for scene in alone if scene.split == "train"]


def _note(path: Path, what: str, seed: int, steps: int) -> None:
    source = f"random weights, seed {seed}"
    if steps:
        source = f"trained on the {what} scenes, seed {seed}, {steps} steps"
    _write_json(path, {"source": source, "data": "scenes", "seed": seed, "steps": steps})


def _write_json(path: Path, body: object) -> None:
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
