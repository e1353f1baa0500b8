"""The specification of a training run: the student, the optimisation, and the input paths.

Plain pydantic models without torch, so that a command line can check parameters before it loads
anything heavy. Parameters of an objective live with the objective (train/objectives/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from sightline.devices import TrainPrecision
from sightline.errors import SightlineError
from sightline.files.atomic_files import model_paths
from sightline.identity import Elsewhere, Outside, declared
from sightline.settings import Settings, explain

TrainedPooling = Literal["cls", "mean", "lasttoken"]
"""The poolings that a folder of sentence-transformers can express."""
_LABEL = Outside("a label")
_MACHINE = Outside("where and how a run computes; it changes no result beyond rounding")
_CONTENT = Elsewhere("the content of the inputs")
_OF_RECIPE = Elsewhere("how the student is used, as it and its folder say")


class StudentConfig(Settings):
    """The encoder that is fine-tuned.

    Attributes:
        name: short name, used in folder names and reports; default: the last part of `model`.
        model: folder of a Hugging Face encoder, or its name on the hub, also NAME@REVISION.
        revision: commit, tag or branch of a model on the hub; empty: its main branch. A run
            records the commit and the digests of what was loaded.
        pooling: how token vectors become the sentence embedding; None: as the student's folder
            says, else cls.
        max_length: tokens of a training text, special tokens included. Evaluation and export use
            the encoder's own maximum instead.
        layers: keep only this many first layers; None: all.
        prompt: text before every text, in training, evaluation and the export; None: that
            of the student's folder; empty: none.
        lora_rank: train adapters of this rank beside frozen weights (LoRA, Hu et al. 2022, arXiv
            2106.09685; the extra `lora`), which the export has merged; None: train all weights.
        lora_alpha: adapters are scaled by this over their rank.
        lora_dropout: dropout of the adapters' inputs.
        lora_modules: names of the linear layers that have adapters, such as q_proj; empty: all.
    """

    name: Annotated[str, _LABEL] = Field(default="", min_length=1)
    model: Annotated[str, Elsewhere("the student's files")] = Field(min_length=1)
    revision: Annotated[str, Elsewhere("the student's files")] = ""
    pooling: Annotated[TrainedPooling | None, _OF_RECIPE] = None
    max_length: int = Field(default=32, ge=3)
    layers: int | None = Field(default=None, ge=1)
    prompt: Annotated[str | None, _OF_RECIPE] = None
    lora_rank: int | None = Field(default=None, ge=1)
    lora_alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_modules: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("model"):
            return values
        model = str(values["model"])
        name, at, revision = model.rpartition("@")
        if at and not Path(model).is_dir():
            if (configured := values.get("revision")) and configured != revision:
                raise ValueError(
                    f"revision is {configured}, but model names {revision}; give only one"
                )
            values = {**values, "model": name, "revision": revision}
        return {"name": Path(str(values["model"])).name, **values}

    @property
    def source(self) -> str:
        """`model` with its revision, as functions that load it take it."""
        return f"{self.model}@{self.revision}" if self.revision else self.model


class TrainConfig(Settings):
    """Optimisation and selection; the defaults are those of METHODS §6 for BERT.

    Attributes:
        batch_size: rows of a micro-batch, and so of one set of in-batch negatives.
        chunk: rows that a process encodes at once (see `train.gradient_cache`), so that memory for
            activations does not grow with the batch; None: all at once.
        learning_rate: peak learning rate of AdamW; it decays linearly to 0.
        epochs: passes over both streams; default: 3, unless `max_steps` is given.
        max_steps: optimiser steps, instead of epochs.
        precision: arithmetic of the encoder; heads and losses are always at least float32. ``tf32``
            is float32 whose matrix products, theirs too, round their factors as PyTorch 1.7 did on
            the A100s of the published runs; for NVIDIA GPUs from compute capability 8.0.
        gradient_accumulation: micro-batches of one optimiser step.
        optimizer: the AdamW of the published runs (``released``) or PyTorch's (``torch``); see
            `train.optimizer`.
        epsilon: ε of AdamW; None: 1e-6 for ``released`` and 1e-8 for ``torch``.
        weight_decay: weight decay of AdamW.
        max_grad_norm: gradients are clipped to this L2 norm over all parameters.
        warmup: share of the steps over which the learning rate rises from 0.
        eval_steps: optimiser steps between two dev scores.
        save_steps: optimiser steps between two checkpoints; None: as many as ten minutes have. The
            last step and one after which a signal stops the run always have one.
        early_stopping_patience: stop after this many dev scores without a new best; None:
            never.
        logging_steps: optimiser steps between two lines of the log.
        eval_batch_size: sentences encoded at once for the dev score.
        text_stream: train on plain sentences too; without them every step is a paired batch
            (the papers' "flickr" and "coco" settings).
        device_cache: share of a GPU's memory that token ids and features may take. If they need
            more, a thread reads them from the host, a batch ahead.
        compile: whether `torch.compile` compiles the encoder.
    """

    batch_size: int = Field(default=64, ge=2)
    chunk: int | None = Field(default=None, ge=2)
    learning_rate: float = Field(default=3e-5, gt=0, allow_inf_nan=False)
    epochs: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    precision: TrainPrecision = "fp32"
    gradient_accumulation: int = Field(default=1, ge=1)
    optimizer: Literal["released", "torch"] = "released"
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    warmup: float = Field(default=0.0, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    eval_steps: int = Field(default=125, ge=1)
    save_steps: Annotated[int | None, _MACHINE] = Field(default=None, ge=1)
    early_stopping_patience: int | None = Field(default=None, ge=1)
    logging_steps: Annotated[int, _MACHINE] = Field(default=25, ge=1)
    eval_batch_size: Annotated[int, _MACHINE] = Field(default=128, ge=1)
    text_stream: bool = True
    device_cache: Annotated[float, _MACHINE] = Field(default=0.25, ge=0, lt=1)
    compile: Literal["off", "on"] = "off"

    @model_validator(mode="before")
    @classmethod
    def _some_length(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epochs") is values.get("max_steps") is None:
            return {**values, "epochs": 3}
        return values

    @model_validator(mode="after")
    def _chunk_is_of_a_batch(self) -> TrainConfig:
        if self.chunk is not None and self.chunk > self.batch_size:
            raise ValueError(
                f"chunk is {self.chunk}, but a batch has {self.batch_size} rows (batch_size); give "
                "a smaller chunk, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError("both of epochs and max_steps given; set only one of them")
        return self


OF_THE_MACHINE = frozenset(name for name, mark in declared(TrainConfig).items() if mark is _MACHINE)
"""Fields of `TrainConfig` that say where and how a run computes: a finished run stays finished, and
rows of a paper are compared, whatever they are."""


class RunSpec(Settings):
    """One run: one objective, one seed, explicit paths.

    Attributes:
        run: name of the run, such as `mcse-clip`.
        objective: name in `train.objectives.OBJECTIVES`.
        parameters: the objective's own parameters, checked by it.
        pairs: folder of a prepared data set whose images and captions are trained on.
        sentences: folder of a prepared data set whose sentences are trained on; one of the two or
            both.
        tokens: token set of every training text.
        phrases: phrase tokens of the captions, for an objective that reads features of objects.
        features: what the objective reads, such as `image-clip` → folder of the feature set.
        dev: SentEval's STSBenchmark folder or a similarity TSV; None trains without selection.
        out: folder of the run; see `train_run`.
        device: where to train, such as `cuda:1`; `auto` tries CUDA, then MPS, then the CPU. Each of
            several processes takes a GPU of its own.
    """

    run: Annotated[str, _LABEL] = Field(min_length=1)
    student: StudentConfig
    train: TrainConfig
    objective: str
    parameters: Annotated[dict[str, Any], Elsewhere("the objective, defaults included")] = {}
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    pairs: Annotated[Path | None, _CONTENT] = None
    sentences: Annotated[Path | None, _CONTENT] = None
    tokens: Annotated[Path, _CONTENT]
    phrases: Annotated[Path | None, _CONTENT] = None
    features: Annotated[dict[str, Path], _CONTENT] = {}
    dev: Annotated[Path | None, _CONTENT] = None
    out: Annotated[Path, Outside("a place")]
    device: Annotated[str, _MACHINE] = "auto"

    @property
    def inputs(self) -> list[Path]:
        """Files and folders that the run reads."""
        models = model_paths(self.student.model)
        files = [self.tokens, *filter(None, (self.phrases, self.dev))]
        return [*models, *files, *self.features.values(), *self.manifests.values()]

    @property
    def manifests(self) -> dict[str, Path]:
        """Those of the streams: captions and images of the pairs, and sentences."""
        folder_of = {"captions": self.pairs, "images": self.pairs, "sentences": self.sentences}
        return {
            name: folder / f"{name}.parquet"
            for name, folder in folder_of.items()
            if folder is not None
        }

    @model_validator(mode="after")
    def _some_stream(self) -> RunSpec:
        if self.pairs is None and self.sentences is None:
            raise ValueError(
                "a run needs captions with images (`pairs`, --data), plain sentences (`sentences`, "
                "--text), or both; found neither"
            )
        if self.sentences is not None and not self.train.text_stream:
            raise ValueError("train.text_stream is off, but a stream of sentences is given")
        return self


def run_spec(*, out: Path | str, **fields: Any) -> RunSpec:
    """The specification of a run; its name is that of the folder ``out`` unless it has another.

    Args:
        fields: those of `RunSpec`.

    Raises:
        SightlineError: an unknown field, or one that does not fit (names it).
    """
    try:
        return RunSpec.model_validate({"run": Path(out).name, "out": out, **fields})
    except ValidationError as error:
        raise SightlineError(f"train: {'; '.join(explain(error))}") from error
