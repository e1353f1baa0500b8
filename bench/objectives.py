"""One paired step of each system relative to SimCSE, with cached features and online teachers.

    python bench/objectives.py                        # BERT-base's shape, this machine's device
    python bench/objectives.py --layers 4 --steps 3

Every system trains the same model on the same captions, read from a cache on disk as in a real
run: token ids, image features (2048 wide for MCSE, 512 for the others), CLIP text features, two
teachers (768 wide) and about four objects per caption. `dalr, teachers online` is the same step
with two frozen BERTs of the student's shape run on the batch's own ids, once each, as in DALR's
released code. The systems alternate, one step each, and ratios compare medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from models.cache import LONGEST, SYSTEMS, Cache
from train_step import read_texts, word_tokenizer
from transformers import BertConfig, BertModel

from train.batch import Batch
from train.data import TrainingData
from train.model import TOTAL, GroundedModel
from train.objectives import make_objective
from train.optimizer import make_optimizer
from train.run_spec import TrainConfig

TARGET = 1.15
ONLINE = "dalr, teachers online"


class Step:
    """A step of one system: gather, forward, backward, clip, AdamW."""

    def __init__(self, system: str, cache: Cache, encoder: Any, options: Any) -> None:
        self.data = cache.data(system, options.batch)
        objective, parameters, _ = SYSTEMS[system]
        made = make_objective(objective, {**parameters, "caption": "random"})
        self.device = torch.device(options.device)
        self.model = GroundedModel(encoder(), made, "cls", self.data.dims).to(self.device)
        config = TrainConfig(learning_rate=3e-5, max_steps=1)
        self.optimizer = make_optimizer(self.model, config)

    def __call__(self, k: int) -> None:
        batch = self.prepared(self.data[k].to(self.device))
        self.model(batch)[TOTAL].backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def prepared(self, batch: Batch) -> Batch:
        """The batch as passed to the model."""
        return batch


class OnlineTeachers(Step):
    """DALR's step with its teachers' features computed within the step instead of read."""

    def __init__(self, system: str, cache: Cache, encoder: Any, options: Any) -> None:
        super().__init__(system, cache, encoder, options)
        self.teachers = {
            feature: encoder().eval().requires_grad_(False) for feature in teachers_of(self.data)
        }

    def prepared(self, batch: Batch) -> Batch:
        lengths = torch.from_numpy(batch.lengths).to(self.device)
        mask = torch.arange(batch.input_ids.shape[1], device=self.device) < lengths[:, None]
        features = dict(batch.features)
        with torch.no_grad():
            for feature, teacher in self.teachers.items():
                states = teacher(input_ids=batch.input_ids, attention_mask=mask.long())
                features[feature] = states.last_hidden_state[:, 0]
        return replace(batch, features=features)


def teachers_of(data: TrainingData) -> list[str]:
    """The sets of the teachers."""
    return [feature for feature in data.feature_sets if feature.startswith("teacher-")]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--layers", type=int, default=12, help="encoder layers (default: 12)")
    parser.add_argument("--batch", type=int, default=64, help="rows per batch (default: 64)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per system")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    captions, _, source = read_texts()
    captions = list(dict.fromkeys(captions[: options.batch * (options.steps + 2)]))
    tokenizer = word_tokenizer(captions)
    ids = tokenizer(captions, truncation=True, max_length=LONGEST)["input_ids"]
    print(f"{options.device}: {torch.get_num_threads()} threads; torch {torch.__version__}")
    print(f"{source}; BERT of {options.layers} layers, hidden 768, batch {options.batch}, float32")

    def encoder() -> Any:
        torch.manual_seed(0)
        config = BertConfig(num_hidden_layers=options.layers)
        return BertModel(config, add_pooling_layer=False).to(options.device).train()  # pyright: ignore[reportArgumentType]

    with tempfile.TemporaryDirectory() as scratch:
        cache = Cache(Path(scratch), captions, ids, len(tokenizer))
        steps: dict[str, Callable[[int], None]] = {
            system: Step(system, cache, encoder, options) for system in SYSTEMS
        }
        steps[ONLINE] = OnlineTeachers("dalr", cache, encoder, options)
        seconds: dict[str, list[float]] = {system: [] for system in steps}
        for k in range(options.steps + 1):
            for system in list(steps) if k % 2 else list(steps)[::-1]:
                start = time.perf_counter()
                steps[system](k)
                if options.device == "cuda":
                    torch.cuda.synchronize()
                if k:  # the first step warms up
                    seconds[system].append(time.perf_counter() - start)
    base = statistics.median(seconds["simcse"])
    print(f"{'system':<24} {'ms/step':>10} {'× SimCSE':>10}  target")
    for system, taken in seconds.items():
        median = statistics.median(taken)
        target = "" if system in ("simcse", ONLINE) else f"at most {TARGET}"
        print(f"{system:<24} {median * 1e3:10.0f} {median / base:10.2f}  {target}")


if __name__ == "__main__":
    main()
