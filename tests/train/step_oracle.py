"""Oracle of a training step: float64, sentence by sentence and number by number.

Nothing here is shared with `train`, nothing is batched or padded, and nothing is rearranged for
precision. An objective's test adds its terms, of the equations in `loss_oracles`.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from conftest import World
from feature_sets import Features
from loss_oracles import Row
from torch import Tensor
from transformers import BertConfig, BertModel

from train.batch import Batch
from train.data import TrainingData
from train.loop import Callback
from train.model import GroundedModel, load_student, phrase_embeddings
from train.objectives import make_objective
from train.objectives.objective import Views
from train.records import RunState
from train.run_spec import RunSpec
from train.train_run import train_run

# ---- the student --------------------------------------------------------------------------------


class OracleStudent:
    """A BERT without dropout and its heads, in float64, with the weights of a `GroundedModel`."""

    def __init__(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        config = BertConfig.from_pretrained(folder)
        self.bert = BertModel(config, add_pooling_layer=False).double()
        self.bert.load_state_dict(
            {name[8:]: value for name, value in state.items() if name.startswith("encoder.")}
        )
        self.weights: dict[str, Tensor] = {
            f"encoder.{name}": value for name, value in self.bert.named_parameters()
        }
        for name, value in state.items():
            if name.startswith("heads."):
                self.weights[name] = value.double().clone().requires_grad_()
        self.moments: dict[str, tuple[int, Tensor, Tensor]] = {}

    def states(self, ids: list[int]) -> Tensor:
        return self.bert(input_ids=torch.tensor([ids])).last_hidden_state[0]

    def project(self, head: str, row: Row) -> Row:
        weight, bias = (self.weights[f"heads.{head}.0.{part}"] for part in ("weight", "bias"))
        return torch.tanh(weight @ row + bias)

    def gradients(self) -> dict[str, Tensor]:
        return {name: w.grad for name, w in self.weights.items() if w.grad is not None}

    def adamw(self, learning_rate: float, kind: str, epsilon: float) -> None:
        """Clip to 1, one step of AdamW without weight decay, and clear the gradients.

        ``released``: as transformers 4 had it on torch 1.7, which cleared gradients by filling in
        zeros; ``torch``: as torch has it.
        """
        gradients = self.gradients()
        if kind == "released":
            for name in self.moments.keys() - gradients.keys():
                gradients[name] = torch.zeros_like(self.weights[name])
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        scale = min(1.0, 1.0 / (norm + 1e-6))
        for name, gradient in gradients.items():
            zero = torch.zeros_like(gradient)
            count, first, second = self.moments.get(name, (0, zero, zero))
            count += 1
            first = 0.9 * first + 0.1 * gradient * scale
            second = 0.999 * second + 0.001 * (gradient * scale) ** 2
            self.moments[name] = (count, first, second)
            if kind == "released":
                corrected = math.sqrt(1 - 0.999**count) / (1 - 0.9**count)
                step = corrected * first / (second.sqrt() + epsilon)
            else:
                step = first / (1 - 0.9**count) / ((second / (1 - 0.999**count)).sqrt() + epsilon)
            with torch.no_grad():
                self.weights[name] -= learning_rate * step
            self.weights[name].grad = None


@dataclass(frozen=True)
class OracleBatch:
    """The input of an objective's oracle.

    Attributes:
        first, second: sentence embeddings of both views, before any head.
        features: feature → rows; empty for plain sentences.
        batch: for the draws that are made from its generator.
        tokens: last hidden states of both views, [length, d] for each sentence.
    """

    first: list[Row]
    second: list[Row]
    features: dict[str, list[Row]]
    batch: Batch
    tokens: tuple[list[Tensor], list[Tensor]] = ([], [])


Terms = Callable[[OracleStudent, OracleBatch], dict[str, Tensor]]
"""An objective's oracle: its terms of a batch, unweighted."""


# ---- a run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One objective with its parameters on the tiny world.

    Attributes:
        sets: feature → name of the feature set; sets of objects are not among the oracle's.
        pairs: what the stream of pairs has beside the tiny world's own.
    """

    world: World
    features: Features
    objective: str
    parameters: dict[str, Any]
    sets: dict[str, str]
    pairs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def spec(self, out: Path, **train: Any) -> RunSpec:
        """A run without dropout, in batches of 6."""
        folder = self.features.root / "student-without-dropout"
        if not folder.is_dir():
            shutil.copytree(self.world.student, folder)
            config = BertConfig.from_pretrained(folder)
            config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
            # At the usual 0.02 all sentences of an untrained BERT are nearly one: their text term
            # is log N, its gradient is rounding, and Adam makes steps of full size out of that.
            config.initializer_range = 0.3
            torch.manual_seed(2)
            BertModel(config).save_pretrained(folder)
        return self.world.spec(
            out,
            self.objective,
            pairs={**self.world.spec(out).model_dump()["pairs"], **self.pairs},
            student={"model": str(folder)},
            train={"batch_size": 6, **train},
            parameters=self.parameters,
            features={feature: self.features.root / name for feature, name in self.sets.items()},
            dev=None,
        )

    def build(self) -> tuple[GroundedModel, TrainingData]:
        """The model that a run would train, and its data."""
        spec = self.spec(self.features.root / "unused")
        objective = make_objective(spec.objective, spec.parameters)
        if not objective.trains_on_text:
            spec = spec.model_copy(update={"text": None})
        data = TrainingData(spec, objective)
        torch.manual_seed(1)
        encoder, _ = load_student(spec.student)
        return GroundedModel(encoder, objective, "cls", data.dims).train(), data

    def oracle(self, state: Mapping[str, Tensor]) -> OracleStudent:
        return OracleStudent(self.features.root / "student-without-dropout", state)

    def oracle_batch(self, student: OracleStudent, batch: Batch) -> OracleBatch:
        rows = zip(batch.input_ids.tolist(), batch.lengths.tolist(), strict=True)
        sentences = [ids[:length] for ids, length in rows]
        one, other = ([student.states(ids) for ids in sentences] for _ in range(2))
        first, second = ([states[0] for states in view] for view in (one, other))
        return OracleBatch(first, second, self.rows_of(batch), batch, (one, other))

    def rows_of(self, batch: Batch) -> dict[str, list[Row]]:
        if batch.stream == "text":
            return {}
        of_sentences = {s: name for s, name in self.sets.items() if name in self.features.rows}
        return {feature: self.features.of(name, batch) for feature, name in of_sentences.items()}


# ---- the three proofs ---------------------------------------------------------------------------


def paired(data: TrainingData) -> Batch:
    """The first batch of image–caption pairs."""
    return next(batch for batch in map(data.__getitem__, range(9)) if batch.stream == "pairs")


def total_of(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


def check_terms_of_two_views(case: Case, terms: Terms, weights: Mapping[str, float]) -> None:
    """Terms, and gradients for both views and all heads, where the two views really differ."""
    model, data = case.build()
    batch = paired(data)
    views = torch.randn(2, len(batch), 16, generator=torch.Generator().manual_seed(3))
    ours, theirs = views.clone().requires_grad_(), views.double().requires_grad_()
    shape = (2, *batch.input_ids.shape, 16)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    our_states = states.clone().requires_grad_()
    their_states = states.double().requires_grad_()
    phrases = None
    if model.objective.needs_phrases:
        assert batch.phrases is not None
        phrases = torch.stack([phrase_embeddings(each, batch.phrases) for each in our_states])
    of_model = Views(ours[0], ours[1], phrases)
    found = model.objective.terms(batch, of_model, model.heads)
    student = case.oracle(model.state_dict())
    tokens = list(their_states[0]), list(their_states[1])
    given = OracleBatch(list(theirs[0]), list(theirs[1]), case.rows_of(batch), batch, tokens)
    expected = terms(student, given)
    _same_values(found, expected)
    model.objective.total(found).backward()
    total_of(expected, weights).backward()
    _same_gradients({"views": ours.grad}, {"views": theirs.grad})
    if phrases is not None:
        _same_gradients({"tokens": our_states.grad}, {"tokens": their_states.grad})
    heads = {f"heads.{name}": w.grad for name, w in model.heads.named_parameters()}
    _same_gradients(heads, student.gradients())


def check_whole_step(case: Case, terms: Terms, weights: Mapping[str, float]) -> None:
    """Terms and every gradient of one paired step, from token ids and cached rows on."""
    model, data = case.build()
    batch = paired(data)
    found = model(batch)
    found["total"].backward()
    student = case.oracle(model.state_dict())
    expected = terms(student, case.oracle_batch(student, batch))
    expected["total"] = total_of(expected, weights)
    expected["total"].backward()
    _same_values(found, expected)
    ours = {name: weight.grad for name, weight in model.named_parameters()}
    _same_gradients(ours, student.gradients())


def check_twenty_steps(
    case: Case,
    terms: Terms,
    weights: Mapping[str, float],
    out: Path,
    optimizer: str = "released",
    epsilon: float | None = None,
) -> list[dict[str, float]]:
    """Both streams, AdamW and all: the losses of a run; returns what the run logged."""
    steps, learning_rate = 20, 1e-3
    told = {"optimizer": optimizer, "epsilon": epsilon}
    spec = case.spec(out, max_steps=steps, learning_rate=learning_rate, **told)
    epsilon = epsilon or {"released": 1e-6, "torch": 1e-8}[optimizer]
    recorder = Recorder()
    train_run(spec, say=lambda line: None, callbacks=[recorder])
    student = case.oracle(recorder.start)
    _, data = case.build()
    streams = set()
    for k, logged in enumerate(recorder.logs):
        batch = data[k]
        streams.add(batch.stream)
        expected = terms(student, case.oracle_batch(student, batch))
        found = {n[5:]: value for n, value in logged.items() if n.startswith("loss_")}
        assert set(found) == set(expected)
        for name, term in expected.items():
            theirs = float(term.detach())
            assert abs(found[name] - theirs) <= 1e-4, (k, name, found[name], theirs)
        total_of(expected, weights).backward()
        student.adamw(learning_rate * (steps - k) / steps, optimizer, epsilon)
    assert len(recorder.logs) == steps
    assert streams == {"pairs", "text"}
    return recorder.logs


class Recorder(Callback):
    """Keeps the weights that a run starts from, and its log."""

    def __init__(self) -> None:
        self.start: dict[str, Tensor] = {}
        self.logs: list[dict[str, float]] = []

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self.start = {name: w.detach().clone() for name, w in model.state_dict().items()}

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        if "loss" in entry:
            self.logs.append(entry)


def _same_values(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, term in expected.items():
        ours, theirs = float(found[name].detach()), float(term.detach())
        assert abs(ours - theirs) <= 1e-5 * max(1.0, abs(theirs)), (name, ours, theirs)


def _same_gradients(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]
) -> None:
    """Equal to 1e-5 of a parameter's largest gradient, or of 1 % of the largest of all."""
    assert set(found) == set(expected)
    missing = [name for name in expected if found[name] is None or expected[name] is None]
    assert missing == []
    largest = {name: float(g.abs().max()) for name, g in expected.items() if g is not None}
    overall = max(largest.values())
    for name, gradient in expected.items():
        ours = found[name]
        assert ours is not None
        assert gradient is not None
        bound = 1e-5 * max(largest[name], 0.01 * overall)
        assert float((ours.double() - gradient).abs().max()) <= bound, name
