"""MTEB's tasks, their data from the Hugging Face cache (never downloaded), and its evaluation.

Imports mteb; `train.evaluate.mteb` does not.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import mteb
import numpy as np
from datasets import config
from datasets.exceptions import DatasetsError
from datasets.naming import camelcase_to_snakecase
from huggingface_hub import constants
from mteb.abstasks import AbsTask, AbsTaskRetrieval, retrieval_dataset_loaders
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.models import ModelMeta
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType

from sightline.errors import SightlineError, first_lines
from sightline.pretrained import quiet
from train.evaluate.models import EvaluatedModel
from train.evaluate.mteb import MtebTask

TEST = "test"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ReadTask:
    """A task whose data is there.

    Attributes:
        task: without its data, and with its random numbers as MTEB seeds them.
        about: what is evaluated of it.
        examples: rows of the evaluated splits; of a retrieval task, queries and documents.
    """

    task: AbsTask
    about: MtebTask
    examples: int


def find_tasks(names: str, types: str | None, languages: str) -> list[AbsTask]:
    """MTEB's tasks, in the order of their names.

    Args:
        names: of tasks and benchmarks, separated by commas. A benchmark chooses the splits and
            subsets of its tasks. Of any other task, the test split is evaluated if it has one.
        types: keep these types only, separated by commas; None: all.
        languages: three-letter codes, separated by commas, for tasks that are named themselves:
            subsets with another language are left out.

    Raises:
        SightlineError: an unknown name (suggests the nearest) or type, a task without a subset in
            the languages, or one with images or sound.
    """
    found: dict[str, AbsTask] = {}
    for name in _words(names):
        for task in _named(name, _words(languages)):
            found.setdefault(task.metadata.name, task)
    if types is not None:
        known = sorted({str(task.metadata.type) for task in found.values()})
        for kind in _words(types):
            if kind not in known:
                raise SightlineError(
                    f"{names} has no tasks of type {kind!r}, only {', '.join(known)}"
                )
        found = {name: task for name, task in found.items() if task.metadata.type in _words(types)}
    for name, task in found.items():
        if list(task.modalities) != ["text"]:
            raise SightlineError(
                f"MTEB's task {name!r} is about {', '.join(task.modalities)}; only tasks of text "
                "can score a sentence encoder: leave it out"
            )
    if not found:
        raise SightlineError("no MTEB task is named; give at least one, such as STS12")
    return list(found.values())


def read_tasks(tasks: Sequence[AbsTask], cache: Path) -> list[ReadTask]:
    """Load the data of each task once, one at a time.

    Raises:
        SightlineError: the data of some tasks is not in ``cache`` (names them all, and the command
            that fetches it).
    """
    found, missing = [], {}
    for task in tasks:
        try:
            found.append(_read(task, cache))
        except (OSError, ValueError, DatasetsError) as error:
            missing[task.metadata.name] = (task, error)
    if missing:
        (name, (_, error)), *_ = missing.items()
        raise SightlineError(
            f"MTEB's data of {', '.join(missing)} is not in {cache} (for {name}: "
            f"{first_lines(error, 1)}). Fetch it where there is a network, and copy that folder "
            f"here:\n    {_command([task for task, _ in missing.values()], cache)}"
        ) from error
    return found


@contextmanager
def reading(task: AbsTask, cache: Path) -> Iterator[AbsTask]:
    """A fresh copy of a task, which finds the pinned revision of its data and nothing else.

    Two things would go wrong silently without a network. `datasets` takes the newest revision in
    its cache, whichever is asked for (STS22 and STS22.v2 are two revisions of one data set); here
    it sees a folder of links to the pinned one. And it lists no configurations, so that mteb would
    miss the candidates of a reranking task and rank the whole corpus; here it lists the cached.
    The copy starts with MTEB's seeded random numbers for every model.
    """
    with tempfile.TemporaryDirectory(prefix="sightline-mteb-") as name, ExitStack() as stack:
        folder = Path(name)
        for leaf in _leaves(task):
            _link(leaf, cache, folder)
        for target, key, value in (
            (config, "HF_DATASETS_CACHE", folder),
            (config, "HF_HUB_OFFLINE", True),
            (constants, "HF_HUB_OFFLINE", True),
            (
                retrieval_dataset_loaders,
                "get_dataset_config_names",
                lambda path, *_: _configurations(folder / _place(path)),
            ),
        ):
            stack.enter_context(_replaced(target, key, value))
        stack.enter_context(quiet())
        if not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        yield copy.deepcopy(task)


class MtebEncoder:
    """One of our models as MTEB's `EncoderProtocol`.

    Prompts are ignored: they instruct models that were trained with instructions, and sentence
    encoders trained without them would read them as text. The similarity is the cosine.
    """

    def __init__(self, model: EvaluatedModel) -> None:
        self.model = model
        self.mteb_model_meta = ModelMeta.create_empty({"name": "sightline/model"})

    def encode(
        self, inputs: Any, *, prompt_type: PromptType | None = None, **about: Any
    ) -> np.ndarray:
        """Embeddings float32 [n, d] of the texts in MTEB's batches.

        Each distinct text is encoded once for all tasks, except the documents of retrieval: MS
        MARCO's 8.8 million would fill 27 GB of memory.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        if prompt_type == PromptType.document:
            return self.model.embedder.encode(texts)
        return self.model.encode(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines [n, m] of every row with every row."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines [n] of the rows with the same number."""
        return pairwise_cos_sim(embeddings1, embeddings2)


def evaluate(model: EvaluatedModel, read: ReadTask, cache: Path) -> dict[str, float | None]:
    """Main score × 100 of each evaluated split and subset (`MtebTask.parts`).

    MTEB's own store of results is neither read nor written.
    """
    with reading(read.task, cache) as task:
        found = mteb.evaluate(
            MtebEncoder(model),  # pyright: ignore[reportArgumentType]
            task,
            co2_tracker=False,
            cache=None,
            show_progress_bar=False,
        )
    return read.about.parts(found.task_results[0].scores)  # pyright: ignore[reportArgumentType]


@contextmanager
def _replaced(target: Any, key: str, value: object) -> Iterator[None]:
    before = getattr(target, key)
    setattr(target, key, value)
    try:
        yield
    finally:
        setattr(target, key, before)


def _place(path: str) -> str:
    """Folder of a data set in the cache, from its path on the hub."""
    owner, _, name = path.rpartition("/")
    return "___".join(filter(None, [owner, camelcase_to_snakecase(name)]))


def _configurations(folder: Path) -> list[str]:
    found = sorted(each.name for each in folder.glob("*"))
    if not found:
        raise FileNotFoundError(f"no configuration of {folder.name} is cached")
    return found


def _words(text: str) -> list[str]:
    """The names in "A, B(c, d)": commas in brackets belong to a name."""
    return [each.strip() for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _named(name: str, languages: list[str]) -> list[AbsTask]:
    with quiet():
        try:
            return list(mteb.get_benchmark(name).tasks)
        except KeyError as error:
            said = [str(error.args[0])]
        try:
            task = mteb.get_task(name, languages=languages, exclusive_language_filter=True)
        except KeyError as error:
            said.append(str(error.args[0]))
            guesses = "".join(f" {each.partition('not found. ')[2]}".rstrip() for each in said)
            raise SightlineError(
                f"MTEB {mteb.__version__} has no task or benchmark {name!r}.{guesses} `mteb "
                "available-tasks` and `mteb available-benchmarks` list them"
            ) from None
        except ValueError:
            raise SightlineError(
                f"MTEB's task {name!r} has no subset in {', '.join(languages)} alone; name its "
                "languages with `languages`"
            ) from None
    if TEST in task.eval_splits and len(task.eval_splits) > 1:
        task.filter_eval_splits([TEST])
    return [task]


def _read(task: AbsTask, cache: Path) -> ReadTask:
    about = MtebTask(
        type=str(task.metadata.type),
        revision=task.metadata.revision,
        splits={split: tuple(task.hf_subsets) for split in task.eval_splits},
    )
    examples = 0
    with reading(task, cache) as fresh:
        for leaf in map(copy.deepcopy, _leaves(fresh)):
            leaf.load_data()
            if isinstance(leaf, AbsTaskRetrieval):  # as before an evaluation
                leaf.convert_v1_dataset_format_to_v2(num_proc=None)
                if "Reranking" in about.type and not all(
                    part.get("top_ranked") for part in _evaluated(leaf)
                ):
                    raise FileNotFoundError("the candidates (top_ranked) are not cached")
            examples += sum(_rows(each) for each in _evaluated(leaf))
    return ReadTask(task, about, examples)


def _leaves(task: AbsTask) -> list[AbsTask]:
    """The tasks with data of their own: CQADupstackRetrieval is the mean of twelve."""
    if isinstance(task, AbsTaskAggregate):
        return [leaf for each in task.metadata.tasks for leaf in _leaves(each)]
    return [task]


def _link(task: AbsTask, cache: Path, folder: Path) -> None:
    """Link the pinned revision of a task's data set from ``cache`` to ``folder``."""
    place, revision = _place(task.metadata.dataset["path"]), task.metadata.revision
    for source in (cache / place).glob("*/*/*"):  # configuration/version/revision
        if source.is_dir() and (source.name == revision or not _COMMIT.fullmatch(revision)):
            link = folder / source.relative_to(cache)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source.absolute(), target_is_directory=True)


def _evaluated(task: AbsTask) -> Iterator[Any]:
    data: Mapping[str, Any] = task.dataset or {}
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            yield data[split] if subset not in data else data[subset][split]


def _rows(data: Any) -> int:
    """Rows of a data set, or of those in a mapping (a retrieval task's queries and corpus)."""
    if isinstance(data, datasets.Dataset):
        return len(data)
    return sum(map(_rows, data.values())) if isinstance(data, Mapping) else 0


def _command(tasks: Sequence[AbsTask], cache: Path) -> str:
    """What fetches the data of ``tasks`` into ``cache``."""
    wanted = {each.metadata.name: list(each.hf_subsets) for task in tasks for each in _leaves(task)}
    code = (
        "import mteb; [mteb.get_task(name, hf_subsets=subsets).load_data() "
        f"for name, subsets in {wanted}.items()]"
    )
    return f'HF_DATASETS_CACHE="{cache}" python -c "{code}"'
