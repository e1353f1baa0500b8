"""Training steps compared with a plain loop written like the published trainers.

    python bench/train_step.py                      # BERT-base's shape, this machine's device
    python bench/train_step.py --layers 4 --steps 6 --precision fp32

Both sides train the same model on the same batches: same rows, so the same in-batch negatives.
The plain loop is float32, tokenises each batch on the fly, pads it to its longest text and runs
the two views as one padded batch. The two alternate in one process, one step each, so that other
work on the machine affects both; rates come from the medians. On a shared machine,
`--threads 1 --clock cpu` measures the process's CPU time instead of wall time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.cache import LONGEST
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from sightline.cache import TokenHeader, TokenSet, keys_of_texts, write_tokens
from train.batch import Batch
from train.data import padded_ids
from train.losses import info_nce
from train.model import TOTAL, GroundedModel
from train.objectives import make_objective
from train.optimizer import make_optimizer
from train.run_spec import Precision, TrainConfig
from train.schedule import Schedule

SHARED = Path(__file__).parents[2] / "shared" / "data"
IMAGE_DIM = 2048
TARGETS = {"captions": {"fp32": 1.4, "bf16": 4.0}, "wiki+flickr": {"fp32": 1.15, "bf16": 3.0}}
SHARE_OF_PAIRS = {"captions": 1.0, "wiki+flickr": 1 / 33}
"""Share of paired steps; with 1,000,000 sentences and 29,783 pairs, one step in 33 is paired."""


def read_texts() -> tuple[list[str], list[str], str]:
    """Captions, sentences, and their source."""
    captions_file = SHARED / "flickr30k" / "flickr_random_captions.txt"
    wiki_file = SHARED / "text" / "wiki_sentences.txt"
    if captions_file.is_file() and wiki_file.is_file():
        captions = captions_file.read_text(encoding="utf-8").splitlines()
        return captions, wiki_file.read_text(encoding="utf-8").splitlines(), "Flickr30k, Wikipedia"
    rng = np.random.default_rng(0)

    def generated(mean: float, spread: float, count: int) -> list[str]:
        lengths = np.clip(rng.normal(mean, spread, count), 4, 60).astype(int)
        return [" ".join(f"w{rng.integers(5000)}" for _ in range(n)) for n in lengths]

    return generated(12.3, 5.2, 4000), generated(21.0, 10.0, 4000), "generated lengths"


def word_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Words as tokens, [CLS] and [SEP] around them: a real fast tokenizer without a download."""
    splitter = pre_tokenizers.BertPreTokenizer()
    normalizer = normalizers.BertNormalizer()
    words: dict[str, int] = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    for text in texts:
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            if len(words) < 30522:
                words.setdefault(word, len(words))
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = splitter  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


class RowsOfTexts:
    """Texts, and image features where they are captions: float16 [n, 2048]."""

    def __init__(self, texts: list[str], images: np.ndarray | None) -> None:
        self.texts, self.images = texts, images

    def image_rows(self, rows: np.ndarray) -> Tensor:
        assert self.images is not None
        return torch.from_numpy(self.images[rows].astype(np.float32))


class Stream(RowsOfTexts):
    """Texts with their token set and random image features, as in a real run."""

    def __init__(self, texts: list[str], tokenizer: Any, folder: Path, paired: bool) -> None:
        rng = np.random.default_rng(1)
        shape = len(texts), IMAGE_DIM
        super().__init__(texts, rng.normal(size=shape).astype(np.float16) if paired else None)
        keys = keys_of_texts(texts)
        header = TokenHeader("bench", "0" * 64, LONGEST, 0, len(tokenizer))
        ids = tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
        write_tokens(folder, header, keys, ids)
        self.tokens = TokenSet.open(folder)
        self.at = self.tokens.rows(keys)
        self.lengths = self.tokens.lengths[self.at].astype(np.int64)
        self.keys = keys

    def batch(self, k: int, rows: np.ndarray) -> Batch:
        lengths = self.lengths[rows]
        ids = torch.from_numpy(padded_ids(self.tokens, int(lengths.max()), self.at[rows])).long()
        features = {} if self.images is None else {"image": self.image_rows(rows)}
        name = "text" if self.images is None else "pairs"
        return Batch(k, 0, name, ids, lengths, features, self.keys[rows])


class PlainLoop:
    """A step like those of SimCSE's and MCSE's released trainers."""

    def __init__(self, encoder: nn.Module, tokenizer: Any, device: torch.device) -> None:
        hidden = encoder.config.hidden_size  # pyright: ignore[reportAttributeAccessIssue]
        self.encoder, self.tokenizer, self.device = encoder, tokenizer, device
        self.text = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()).to(device)
        self.grounding = nn.Sequential(nn.Linear(hidden, 256), nn.Tanh()).to(device)
        self.image = nn.Sequential(nn.Linear(IMAGE_DIM, 256), nn.Tanh()).to(device)
        modules = nn.ModuleList([encoder, self.text, self.grounding, self.image])
        self.parameters = [p for p in modules.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-5, weight_decay=0.0)

    def step(self, stream: RowsOfTexts, rows: np.ndarray) -> float:
        encoded = self.tokenizer(
            [stream.texts[row] for row in rows],
            truncation=True,
            max_length=LONGEST,
            padding=True,
            return_tensors="pt",
        ).to(self.device)
        ids = encoded["input_ids"].repeat(2, 1)
        mask = encoded["attention_mask"].repeat(2, 1)
        vectors = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        first, second = vectors.chunk(2)
        loss = info_nce(self.text(first), self.text(second))
        if stream.images is not None:
            images = self.image(stream.image_rows(rows).to(self.device))
            views = [info_nce(self.grounding(view), images) for view in (first, second)]
            loss = loss + 0.01 * (views[0] + views[1]) / 2
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


class OurStep:
    """A step as `train.loop.Loop` takes it: its model, batches, optimiser and clipping."""

    def __init__(self, encoder: Any, device: torch.device, precision: Precision) -> None:
        objective = make_objective("mcse", {"image": "bench"})
        dims = {"image": IMAGE_DIM}
        self.model = GroundedModel(encoder, objective, "cls", dims, precision=precision).to(device)
        self.device = device
        self.optimizer = make_optimizer(self.model, TrainConfig(learning_rate=3e-5, max_steps=1))

    def step(self, stream: Stream, rows: np.ndarray) -> float:
        batch = stream.batch(0, rows).to(self.device)
        total = self.model(batch)[TOTAL]
        total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(total.detach())


def measure(
    sides: dict[str, Callable[[Stream, np.ndarray], float]],
    draws: list[tuple[Stream, np.ndarray]],
    device: torch.device,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Seconds of each step of each side; the sides alternate, and the first draw warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number, (stream, rows) in enumerate(draws):
        order = list(sides) if number % 2 else list(sides)[::-1]
        for name in order:
            start = clock()
            sides[name](stream, rows)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                seconds[name].append(clock() - start)
    return seconds


def cpu_capability() -> str:
    """This CPU's bfloat16 support, which decides whether bf16 can pay off."""
    flags = ""
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith("flags")), "")
    has = [name for name in ("avx512_bf16", "amx_bf16") if name in flags]
    bf16 = ", ".join(has) or "none of avx512_bf16, amx_bf16 (bf16 is emulated: expect a slowdown)"
    return f"{torch.backends.cpu.get_cpu_capability()}, bf16 instructions: {bf16}"


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--layers", type=int, default=12, help="encoder layers (default: 12)")
    parser.add_argument("--batch", type=int, default=64, help="rows per batch (default: 64)")
    parser.add_argument("--steps", type=int, default=4, help="timed steps per schedule, precision")
    parser.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    captions, sentences, source = read_texts()
    tokenizer = word_tokenizer(captions + sentences)
    where = torch.cuda.get_device_name() if device.type == "cuda" else cpu_capability()
    print(f"{device.type}: {where}; {torch.get_num_threads()} threads; torch {torch.__version__}")
    shape = f"BERT of {options.layers} layers, hidden 768, batch {options.batch}"
    print(f"{source}; {shape}; {options.clock} time")

    def encoder() -> Any:
        torch.manual_seed(0)
        config = BertConfig(num_hidden_layers=options.layers)
        return BertModel(config, add_pooling_layer=False).to(device).train()  # pyright: ignore[reportArgumentType]

    with tempfile.TemporaryDirectory() as scratch:
        pairs = Stream(captions, tokenizer, Path(scratch) / "pairs", paired=True)
        text = Stream(sentences, tokenizer, Path(scratch) / "text", paired=False)
        precisions = ["fp32", "bf16"] if options.precision == "both" else [options.precision]
        print(f"{'schedule':<12} {'ours':<5} {'plain/s':>8} {'ours/s':>8} {'ratio':>6}  target")
        for precision in precisions:
            plain = PlainLoop(encoder(), tokenizer, device)
            ours = OurStep(encoder(), device, precision)
            sides = {"plain": plain.step, "ours": ours.step}
            of_stream = {
                name: measure(sides, draws(stream, options), device, clock)
                for name, stream in (("pairs", pairs), ("text", text))
            }
            for schedule, share in SHARE_OF_PAIRS.items():
                # expected seconds per step of this schedule, from the medians of both streams
                expected = {
                    side: share * statistics.median(of_stream["pairs"][side])
                    + (1 - share) * statistics.median(of_stream["text"][side])
                    for side in sides
                }
                rates = {side: options.batch / seconds for side, seconds in expected.items()}
                print(
                    f"{schedule:<12} {precision:<5} {rates['plain']:8.1f} {rates['ours']:8.1f} "
                    f"{rates['ours'] / rates['plain']:6.2f}  {TARGETS[schedule][precision]:.2f}",
                    flush=True,
                )


def draws(stream: Stream, options: argparse.Namespace) -> list[tuple[Stream, np.ndarray]]:
    """One warm-up batch and the timed ones, drawn as in a real run."""
    schedule = Schedule(len(stream.texts), 0, options.batch, 0)
    return [(stream, schedule.rows(schedule.draw(k))) for k in range(options.steps + 1)]


if __name__ == "__main__":
    main()
