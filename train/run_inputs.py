"""The inputs of a training run, opened, checked against each other, and digested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from sightline.digest import Pinned, digest
from sightline.errors import SightlineError
from sightline.identity import content_of, identity
from sightline.machine.hardware import cpu_warning
from sightline.models.sentence_transformers_folder import Licence, Recipe, licence_of, pin
from sightline.plugins import expect
from train.code_digest import code_of
from train.data import TrainingData, first_paired
from train.evaluate.similarity import GradedPairs, why_undefined
from train.evaluate.sts import load_graded_pairs
from train.objectives import Objective, make_objective
from train.run_spec import RunSpec, TrainedPooling
from train.schedule import micro_batches, optimizer_steps, steps_on_pairs
from train.student import recipe_of

_LOOKED_AT = 100  # micro-batches, for what is said before a run


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run.

    Attributes:
        student: the encoder to train, by the content of its files.
        licence: of it, as its model card says.
        recipe: how it is used; `own_recipe`: how its folder says (`train.student.recipe_of`).
        digest: SHA-256 (hex) over what determines the result: every setting and the content of
            every input. Paths, labels and where a run computes do not change it
            (`sightline.identity`).
        code: digests of the code that trains on them.
    """

    spec: RunSpec
    objective: Objective
    data: TrainingData
    dev: GradedPairs | None
    student: Pinned
    licence: Licence
    recipe: Recipe
    own_recipe: Recipe
    digest: str
    code: dict[str, str]

    @classmethod
    def open(cls, spec: RunSpec, processes: int = 1) -> RunInputs:
        """Open and check all of them."""
        size = spec.train.batch_size
        if size % processes:
            raise SightlineError(
                f"batch_size is {size}, which {processes} processes cannot share evenly; "
                f"give a multiple of {processes}, or start a different number of processes"
            )
        objective = make_objective(spec.objective, spec.parameters)
        data = TrainingData(spec, objective)
        dev = None if spec.dev is None else load_graded_pairs(spec.dev)
        if dev is not None and (why := why_undefined(dev.gold)):
            raise SightlineError(f"{spec.dev}: {why}; give a dev set with scores")
        student = pin(spec.student.source)
        recipe, own_recipe = recipe_of(spec.student)
        return cls(
            spec=spec,
            objective=objective,
            data=data,
            dev=dev,
            student=student,
            licence=licence_of(spec.student.source),
            recipe=recipe,
            own_recipe=own_recipe,
            digest=_digest(spec, objective, data, dev, student, recipe),
            code=code_of([spec.objective]),
        )

    @property
    def files(self) -> list[Path]:
        """Files and folders that the run reads."""
        return [*self.spec.inputs, *self.objective.files]

    @property
    def pooling(self) -> TrainedPooling:
        """How the student is pooled."""
        return cast("TrainedPooling", self.recipe.pooling)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return optimizer_steps(self.spec.train, self.data.schedule)

    def notes(self, device: str) -> Iterator[str]:
        """What is known of the run before it begins.

        Args:
            device: type of the one that it computes on.
        """
        config, data = self.spec.train, self.data
        if data.feature_sets:
            paired = steps_on_pairs(config, data.schedule, self.steps)
            yield f"{paired:,} of {self.steps:,} steps on pairs"
            if paired * 50 < self.steps:
                yield (
                    "warning: fewer than one step in fifty is on pairs, so the objective can "
                    "hardly differ from one without features; give more pairs or fewer sentences"
                )
        yield from self._unlike_the_folder()
        if warning := cpu_warning(device):
            yield f"warning: {warning}"
        yield from self.dev.notes if self.dev else ()
        if told := data.tokens.record.cut_in_words:
            yield f"{data.tokens.path}: {told}"
        if data.dropped_pairs:
            yield f"{data.dropped_pairs} pairs left out: their images were not extracted"
        if data.dropped_phrases:
            yield f"{data.dropped_phrases} phrases left out: their objects were not extracted"
        for stream, rows in (("pairs", data.schedule.pairs), ("sentences", data.schedule.text)):
            if 0 < rows < config.batch_size:
                told = f"all {rows:,} {stream}: batch_size is {config.batch_size:,}"
                yield f"a batch of {stream} is {told}"
        count = min(_LOOKED_AT, micro_batches(config, data.schedule))
        repeated, rows = data.repeats(count)
        if repeated:
            yield (
                f"{100 * repeated / rows:.1f} % of the rows of the first {count} batches share "
                "their text or image with another row of their batch, which counts as a negative"
            )

    def _unlike_the_folder(self) -> Iterator[str]:
        """What the run does otherwise than the student's folder says, or takes over from it."""
        recipe, stored = self.recipe, self.own_recipe
        if stored.pooling not in (None, recipe.pooling):
            yield f"pooling is {recipe.pooling}, but the student's folder says {stored.pooling}"
        told = {"Dropout", "Pooling" if stored.pooling else ""}
        if left_out := [kind for kind in stored.modules[len(recipe.modules) :] if kind not in told]:
            yield (
                f"warning: pooling is {recipe.pooling}, so the student is its encoder without the "
                f"modules after it ({', '.join(left_out)})"
            )
        if recipe.prompt != stored.prompt:
            yield f"prompt is {recipe.prompt!r}, but the student's folder says {stored.prompt!r}"
        elif recipe.prompt:
            yield f"prompt is {recipe.prompt!r}, as the student's folder says"

    def warnings(self) -> Sequence[str]:
        """What the objective finds wrong in the first paired batches."""
        from train.objectives.module import warnings_of

        batches = micro_batches(self.spec.train, self.data.schedule)
        return warnings_of(self.objective, first_paired(self.data, batches))


def _digest(
    spec: RunSpec,
    objective: Objective,
    data: TrainingData,
    dev: GradedPairs | None,
    student: Pinned,
    recipe: Recipe,
) -> str:
    """The digest of a run: each part stands under a name of its own."""
    try:
        parameters = expect(objective.identity(), dict, objective, "identity")
    except SightlineError as error:
        raise SightlineError(f"objective {spec.objective}: {error}") from error
    tokens = dict.fromkeys(data.source, data.tokens.record.content_digest)
    return digest(
        {
            "settings": identity(spec),
            "parameters": parameters,
            "student": [student.weights_sha256, student.tokenizer_sha256],
            "recipe": {k: v for k, v in asdict(recipe).items() if k != "subfolder"},
            "files": {name: content_of(path) for name, path in spec.manifests.items()},
            "tokens": tokens,
            "phrases": data.phrases_digest,
            "second texts": data.extra_digests,
            "dev": None if dev is None else dev.sha256,
            "features": {
                name: [features.fingerprint, features.record.content_digest]
                for name, features in data.feature_sets.items()
            },
        }
    )
