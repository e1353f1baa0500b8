"""Trains and writes the demo's models: two image encoders, a teacher and the untrained student."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.draw import draw
from pipeline.datasets.scenes.scene import Scene
from pipeline.datasets.scenes.similarity import GradedPair
from pipeline.datasets.scenes.source import ScenesSource
from pipeline.datasets.source import Progress
from sightline.extras import require
from sightline.threads import using_threads

THREADS = 2  # as many as the demo's machine has; a fixed number keeps the weights' bytes


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
    and ``student/`` below ``folder``.

    Raises:
        SightlineError: torchvision or open_clip are not installed.
    """
    for library in ("open_clip", "torchvision"):
        require(library, "the data set scenes, which trains its own encoders,")
    from safetensors.torch import save_file

    from pipeline.datasets.scenes.clip import clip_config, train_clip
    from pipeline.datasets.scenes.resnet import train_resnet
    from pipeline.datasets.scenes.student import new_bert, save
    from pipeline.datasets.scenes.teacher import train_teacher

    encoders = folder / "encoders"
    encoders.mkdir()
    seed, edge = source.seed, source.image_size
    singles = single_things(scenes)
    single_pixels = np.stack([draw(scene, edge)[0] for scene in singles])
    with using_threads(THREADS):
        resnet = train_resnet(
            np.concatenate([pixels, single_pixels]),
            [*scenes, *singles],
            steps=source.resnet_steps,
            seed=seed,
            progress=progress,
        )
        save_file(resnet, encoders / "resnet.safetensors")
        _write_json(encoders / "resnet.json", {"resize": edge, "crop": edge})
        _note(encoders / "resnet.provenance.json", "labels of", seed, source.resnet_steps)

        clip = train_clip(pixels, captions, steps=source.clip_steps, seed=seed, progress=progress)
        save_file(clip, encoders / "clip.safetensors")
        _write_json(encoders / "clip.json", clip_config(edge))
        _note(encoders / "clip.provenance.json", "captions of", seed, source.clip_steps)

        teacher = train_teacher(pairs, steps=source.teacher_steps, seed=seed, progress=progress)
        save(encoders / "teacher", teacher)
        where = encoders / "teacher" / "provenance.json"
        _note(where, "similarity pairs of", seed, source.teacher_steps)

        student = new_bert(layers=source.student_layers, hidden=source.student_hidden, seed=seed)
        save(folder / "student", student)
        _note(folder / "student" / "provenance.json", "", seed, 0)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors makes its files private


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
