"""Training steps: compared with a plain loop, and with each other; and how long a run would take.

    python bench/training.py                                   # this machine's device
    python bench/training.py --layers 4 --only plain systems   # on a CPU: a few minutes
    python bench/training.py --device cpu --quick              # tiny shapes, to see it work

BERT-base with random weights and data that it draws, of the papers' shapes on a GPU, smaller ones
on a CPU. Steps are those of `train.loop.Loop`: feed, forward, backward, step, log, checks. Parts:

- plain: a float32 loop written like the published trainers, which tokenises each batch, pads it to
  its longest text and runs both views at once; and MCSE in each precision, eager and (on a GPU)
  compiled, on the same rows. Captions and plain sentences are measured apart; wiki + flickr is
  1,000,000 sentences with 29,783 pairs, so one step in 33 is paired.
- projection (on a GPU): `train_run` of DALR for 2,000 steps with one dev score, extended to the
  four epochs of the papers with a dev score every `eval_steps` and a checkpoint by the clock.
- systems: a paired step of every system relative to SimCSE, and of DALR with its two teachers run
  within the step, as in its released code.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from harness import OutOfTime, Report, add_device, device_of, feature_set, options_of, take_turns
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

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
from sightline.devices import TrainPrecision, float32_products, has_tf32
from sightline.models.sentence_transformers_folder import tokenizer_sha256
from train.batch import Batch, Embeddings
from train.data import TrainingData
from train.distributed import Processes
from train.loop import SAVE_SECONDS, Callback, Loop
from train.losses import info_nce
from train.model import Student
from train.objectives import make_objective
from train.records import DEV, RunState
from train.run_folder import RunFolder
from train.run_spec import RunSpec, TrainConfig
from train.schedule import Stream
from train.train_run import train_run

PLAIN, ONLINE = "plain", "dalr, teachers online"
SHARE_OF_PAIRS = {"captions": 1.0, "wiki + flickr": 1 / 33}
RATIOS = {"captions": {"fp32": 1.4, "bf16": 4.0}, "wiki + flickr": {"fp32": 1.15, "bf16": 3.0}}
"""Targets: how many times as fast as the plain loop."""
SHARE, MINUTES, EPOCHS = 1.15, 10.0, 4
"""Targets: a system's step to SimCSE's; DALR on wiki + flickr, which took 245 on an A100."""

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
        every = np.concatenate([keys, keys_of_texts(self.sentences)])
        write_tokens(folder / "tokens", header, every, [*ids, *of_sentences])
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
        of_objects = any(need.row_of == "object" for need in needs)
        body = {
            "run": system,
            "student": {"name": "bench", "model": "bench", "max_length": LONGEST},
            "train": {"batch_size": batch_size, "learning_rate": 3e-5},
            "objective": system,
            "parameters": SYSTEMS[system],
            "pairs": self.folder if "pairs" in streams else None,
            "sentences": self.folder if "text" in streams else None,
            "tokens": self.folder / "tokens",
            "phrases": self.folder / "phrases" if of_objects else None,
            "features": {need.name: self.folder / need.name for need in needs},
            "out": self.folder / "run",
        }
        return RunSpec.model_validate({**body, **given})

    def data(self, spec: RunSpec) -> TrainingData:
        """The inputs of a run."""
        return TrainingData(spec, make_objective(spec.objective, spec.parameters))


@dataclass(frozen=True)
class Shape:
    """How large everything is; ``block`` steps are timed together."""

    sentences: int
    pairs: int
    words: int
    dev: int
    batch: int
    layers: int
    width: int
    block: int
    steps: int


GPU = Shape(1_000_000, 29_783, 30_000, 1_500, 128, 12, 768, 16, 2_000)
CPU = Shape(4_000, 4_000, 30_000, 40, 64, 12, 768, 1, 75)
QUICK = Shape(2_000, 200, 400, 40, 8, 2, 64, 4, 75)


@dataclass(frozen=True)
class Variant:
    """How a step is computed."""

    precision: TrainPrecision
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.precision}, {'compiled' if self.compiled else 'eager'}"


class Bench:
    """The drawn data, and the student, on one device.

    Attributes:
        fast: whether a whole run is within reach: on a GPU, or in tiny shapes.
        variants: those that the device is measured with.
        deadline: of `time.monotonic`, after which nothing is begun.
    """

    def __init__(self, options: Namespace, folder: Path) -> None:
        self.deadline = time.monotonic() + options.seconds
        self.device, self._rounds = device_of(options), options.rounds
        gpu = self.device.type == "cuda"
        self.fast = gpu or options.quick
        shape = QUICK if options.quick else GPU if gpu else CPU
        self.shape = replace(shape, layers=options.layers or shape.layers)
        self.report = Report(options, str(self.shape), self.device)
        self.world = World(folder, shape.sentences, shape.pairs, shape.words)
        self.variants = [Variant("bf16"), Variant("fp32")]
        if has_tf32(self.device):
            self.variants.append(Variant("tf32"))
        if gpu:
            self.variants.append(Variant("bf16", compiled=True))

    def seconds(self, sides: Mapping[str, Callable[[], None]]) -> dict[str, float]:
        """Seconds of a step of each side, which takes a block of them."""
        costs = take_turns(sides, self._rounds, device=self.device, deadline=self.deadline)
        return {side: cost.wall / self.shape.block for side, cost in costs.items()}

    def encoder(self) -> Any:
        """The student, the same each time."""
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(self.world.tokenizer),
            hidden_size=self.shape.width,
            num_hidden_layers=self.shape.layers,
            num_attention_heads=self.shape.width // 64,
            intermediate_size=4 * self.shape.width,
            pad_token_id=0,
        )
        return BertModel(config, add_pooling_layer=False).train()  # pyright: ignore[reportArgumentType]

    def steps(
        self,
        spec: RunSpec,
        variant: Variant,
        model: type[Student] = Student,
        data: TrainingData | None = None,
    ) -> Callable[[], None]:
        """A block of steps of a run, which go on where the last block stopped."""
        objective = make_objective(spec.objective, spec.parameters)
        data = data or self.world.data(spec)
        stop = Stop()
        loop = Unsaved(
            model(
                self.encoder(),
                objective,
                "cls",
                data.dims,
                precision=variant.precision,
                compiled=variant.compiled,
            ),
            data,
            # as many steps as a whole run, so that none of these is its last
            TrainConfig(batch_size=self.shape.batch, epochs=100, precision=variant.precision),
            seed=0,
            device=self.device,
            processes=Processes(),
            folder=RunFolder(self.world.folder / "never"),
            state=RunState(),
            callbacks=[stop],
        )

        def block() -> None:
            stop.left, loop.state.should_stop = self.shape.block, False
            with float32_products(tf32=variant.precision == "tf32"):
                loop.run()

        return block


class Unsaved(Loop):
    """A loop that can be stopped and continued; it writes no checkpoints."""

    def _save(self) -> None:
        pass


class Stop(Callback):
    """Stops a loop after some steps."""

    left = 0

    def step(self, state: RunState) -> None:
        self.left -= 1
        state.should_stop = self.left == 0


class PlainLoop:
    """Steps like those of SimCSE's and MCSE's released trainers, on the rows of ``data``."""

    def __init__(self, bench: Bench, data: TrainingData, stream: Stream) -> None:
        world, width, self._device = bench.world, bench.shape.width, bench.device
        self._tokenizer: Any = world.tokenizer
        self._texts = world.captions if stream == "pairs" else world.sentences
        self._schedule, self._k, self._block = data.schedule, 0, bench.shape.block
        image_width = FEATURES["image-resnet"]
        self._images: Tensor | None = None
        if stream == "pairs":
            self._images = torch.randn(len(self._texts), image_width, dtype=torch.float16)
        self._encoder = bench.encoder()
        self._text = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self._grounding = nn.Sequential(nn.Linear(width, 256), nn.Tanh())
        self._image = nn.Sequential(nn.Linear(image_width, 256), nn.Tanh())
        heads = (self._text, self._grounding, self._image)
        modules = nn.ModuleList([self._encoder, *heads]).to(self._device)
        self._parameters = list(modules.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=3e-5, weight_decay=0.0)
        texts = [self._texts[row] for row in self._rows(0)]
        assert np.array_equal(keys_of_texts(texts), data[0].keys), "the sides read other rows"

    def __call__(self) -> None:
        """Take a block of steps."""
        for _ in range(self._block):
            self._step(self._rows(self._k))
            self._k += 1

    def _rows(self, k: int) -> np.ndarray:
        return self._schedule.rows(self._schedule.draw(k))

    def _step(self, rows: np.ndarray) -> None:
        encoded = self._tokenizer(
            [self._texts[row] for row in rows],
            truncation=True,
            max_length=LONGEST,
            padding=True,
            return_tensors="pt",
        ).to(self._device)
        ids = encoded["input_ids"].repeat(2, 1)
        mask = encoded["attention_mask"].repeat(2, 1)
        vectors = self._encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        first, second = vectors.chunk(2)
        loss = info_nce(self._text(first), self._text(second))
        if self._images is not None:
            images = self._image(self._images[torch.tensor(rows)].float().to(self._device))
            views = [info_nce(self._grounding(view), images) for view in (first, second)]
            loss = loss + 0.01 * (views[0] + views[1]) / 2
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        float(loss.detach())  # which they log


class OnlineTeachers(Student):
    """A model whose teachers, of the student's shape, read the batch instead of the cache."""

    def __init__(self, encoder: Any, objective: Any, *args: Any, **options: Any) -> None:
        super().__init__(encoder, objective, *args, **options)
        names = [need.name for need in objective.features if need.kind == "teacher"]
        teachers = {name: BertModel(encoder.config, add_pooling_layer=False) for name in names}
        self.teachers = nn.ModuleDict(teachers).requires_grad_(False)

    def terms(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        ids = batch.sentences.input_ids
        lengths = torch.tensor(batch.sentences.lengths).to(ids.device)
        places = torch.arange(ids.shape[1], device=lengths.device)
        mask = (places < lengths[:, None]).long()
        features = dict(batch.features)
        with torch.no_grad():
            for name, teacher in self.teachers.eval().items():
                states = teacher(input_ids=ids, attention_mask=mask)
                features[name] = states.last_hidden_state[:, 0]
        return super().terms(replace(batch, features=features), embeddings)


def plain(bench: Bench) -> None:
    """The plain loop and MCSE's variants, on each stream and so on both."""
    seconds: dict[Stream, Mapping[str, float]] = {}
    streams: tuple[tuple[Stream, str], ...] = (("pairs", "mcse"), ("text", "simcse"))
    for stream, system in streams:
        spec = bench.world.spec(system, bench.shape.batch, [stream])
        data = bench.world.data(spec)
        sides: dict[str, Callable[[], None]] = {PLAIN: PlainLoop(bench, data, stream)}
        for variant in bench.variants:
            sides[str(variant)] = bench.steps(spec, variant, data=data)
        seconds[stream] = bench.seconds(sides)
        del sides
        release()
    for setting, share in SHARE_OF_PAIRS.items():
        ms = {
            side: 1e3 * (share * seconds["pairs"][side] + (1 - share) * seconds["text"][side])
            for side in seconds["pairs"]
        }
        for side, each in ms.items():
            target = RATIOS[setting].get(side.partition(",")[0])
            what = f"mcse, {setting}, {side} / plain fp32"
            bench.report.ratio(what, ms[PLAIN] / each, at_least=target, ms=each)


def systems(bench: Bench) -> None:
    """Every system on paired steps alone."""
    precision = "bf16" if bench.fast else "fp32"
    for variant in (each for each in bench.variants if each.precision == precision):
        sides: dict[str, Callable[[], None]] = {
            system: bench.steps(bench.world.spec(system, bench.shape.batch, ["pairs"]), variant)
            for system in SYSTEMS
        }
        spec = bench.world.spec("dalr", bench.shape.batch, ["pairs"])
        sides[ONLINE] = bench.steps(spec, variant, OnlineTeachers)
        seconds = bench.seconds(sides)
        for system, each in seconds.items():
            what, share = f"step of {system} / simcse, {variant}", each / seconds["simcse"]
            target = None if system in ("simcse", ONLINE) else SHARE
            bench.report.ratio(what, share, at_most=target, ms=1e3 * each)
        del sides
        release()


class Clock(Callback):
    """When steps began, were logged and ended; before it logs, a loop waits for the GPU."""

    def __init__(self) -> None:
        self.logged: dict[int, float] = {}

    def begin(self, state: RunState, model: Student) -> None:
        self.begun = time.perf_counter()

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        if DEV in entry:
            self.scored = time.perf_counter()
        else:
            self.logged[state.step] = time.perf_counter()

    def end(self, state: RunState) -> None:
        self.ended = time.perf_counter()


def projection(bench: Bench) -> None:
    """DALR on wiki + flickr, from some steps, one dev score and one checkpoint."""
    shape, folder = bench.shape, bench.world.folder
    variant = bench.variants[-1]
    student, dev = folder / "student", folder / "dev.tsv"
    bench.encoder().save_pretrained(student)
    bench.world.tokenizer.save_pretrained(student)
    scores = np.random.default_rng(3).uniform(0, 5, shape.dev)
    texts = bench.world.sentences
    halves = zip(scores, texts, texts[shape.dev :], strict=False)
    lines = [f"{score:.2f}\t{one}\t{other}" for score, one, other in halves]
    dev.write_text("\n".join(["score\tsentence1\tsentence2", *lines]) + "\n", "utf-8")
    train = {
        "batch_size": shape.batch,
        "learning_rate": 3e-5,
        "max_steps": shape.steps,
        "eval_steps": shape.steps,
        "precision": variant.precision,
        "compile": "on" if variant.compiled else "off",
    }
    spec = bench.world.spec(
        "dalr",
        shape.batch,
        train=train,
        student={"name": "bench", "model": str(student), "max_length": LONGEST},
        dev=dev,
        device=str(bench.device),
    )
    clock = Clock()
    train_run(spec, say=lambda line: print(f"  {line}", flush=True), callbacks=[clock])
    marks = sorted(clock.logged)
    last, first = marks[-1], marks[len(marks) // 10]  # compiled by then
    step = (clock.logged[last] - clock.logged[first]) / (last - first)
    start = max(0.0, clock.logged[first] - clock.begun - first * step)  # compiling, most of it
    score, checkpoint = clock.scored - clock.logged[last], clock.ended - clock.scored
    steps = EPOCHS * len(bench.world.data(spec))
    scores_of_run = -(-steps // TrainConfig(epochs=EPOCHS).eval_steps)
    seconds = start + steps * step + scores_of_run * score
    checkpoints = 1 + int(seconds / SAVE_SECONDS)  # the last step has one
    minutes = (seconds + checkpoints * checkpoint) / 60
    bench.report.ratio(
        f"dalr, wiki + flickr, {EPOCHS} epochs, {variant}, minutes",
        minutes,
        at_most=MINUTES,
        steps=steps,
        ms=1e3 * step,
        start_s=start,
        scores=scores_of_run,
        score_s=score,
        checkpoints=checkpoints,
        checkpoint_s=checkpoint,
    )
    shutil.rmtree(spec.out)


PARTS: dict[str, Callable[[Bench], None]] = {
    "plain": plain,
    "projection": projection,
    "systems": systems,
}


def release() -> None:
    """Give back what the last sides held."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure part by part, as far as the time goes."""
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--layers", type=int, help="of the encoder (default: 12)")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to measure")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing more after these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, Path(scratch))
        for part in options.only or PARTS:
            if part == "projection" and not (options.only or bench.fast):
                continue
            try:
                if time.monotonic() > bench.deadline:
                    raise OutOfTime
                PARTS[part](bench)
            except OutOfTime:
                bench.report.add(left_out_for_lack_of_time=part)
            release()


if __name__ == "__main__":
    main()
