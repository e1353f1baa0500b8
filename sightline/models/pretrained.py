"""The only way to load pretrained models: none of their code runs, no weight is made up."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from sightline.errors import SightlineError, first_lines
from sightline.files.file_kinds import file_kind, unexpected


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of model libraries while a model is built or written.

    They are about random weights and unused heads; where those matter, Sightline raises an error or
    the identity records them. `logging.info` at module level, as in open_clip, also installs a
    handler on the root logger; it is removed again.
    """
    from transformers.utils import logging as transformers_logging

    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    bars = transformers_logging.is_progress_bar_enabled()
    logging.disable(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        if bars:
            transformers_logging.enable_progress_bar()


def why_silent(address: str) -> str:
    """Why the hub at ``address`` does not respond within 5 seconds; empty if it does."""
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError:
        return ""  # any response will do
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return ""


@lru_cache(maxsize=1)
def _is_silent(address: str, minute: int) -> bool:
    """Whether the hub at ``address`` does not respond, which is said and asked once a minute."""
    if reason := why_silent(address):
        print(
            f"{address} does not answer ({reason}): only models in this machine's cache can be "
            "loaded",
            file=sys.stderr,
        )
    return bool(reason)


@contextmanager
def from_hub(model: str, part: str) -> Iterator[None]:
    """As `reaching`; where the hub does not respond, only this machine's cache is used.

    huggingface_hub would request every file of a model six times, half a minute each.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    minute = int(time.monotonic() // 60)
    constants.HF_HUB_OFFLINE = offline or _is_silent(constants.ENDPOINT, minute)
    try:
        with reaching(model, part):
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline


@contextmanager
def reaching(model: str, part: str) -> Iterator[None]:
    """Turn any failure of a download into one SightlineError.

    Args:
        model: as the user named it.
        part: is being fetched, such as ``weights 'openai'``.
    """
    try:
        yield
    except Exception as error:
        # OSError covers urllib's URLError, timeouts, refused connections, huggingface_hub's
        # "offline and not in the cache", and what transformers makes of them; the HTTP client
        # under huggingface_hub has its own exceptions, under a name that changes.
        from_client = type(error).__module__.startswith("httpx")
        if not isinstance(error, OSError) and not from_client:
            raise
        raise SightlineError(
            f"{model}: its {part} cannot be fetched: not cached here, and the download failed "
            f"({type(error).__name__}: {first_lines(error, 1)}). Run this once with network access "
            "to the hub, copy the files here and give their path, or correct the name. "
            "No substitute was loaded"
        ) from error


_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/")


def commit_of(file: str | Path) -> str:
    """The commit of a file in this machine's cache of the hub; empty for one elsewhere."""
    match = _SNAPSHOT.search(Path(file).as_posix())
    return match[1] if match else ""


def check_finite(name: str | Path, model: Any) -> None:
    """Refuse weights with NaN or infinite values."""
    weights = dict(model.named_parameters())
    bad = [key for key, weight in weights.items() if not weight.isfinite().all()]
    if bad:
        raise SightlineError(
            f"{name}: {len(bad)} of {len(weights)} weights hold NaN or infinite values, such as "
            f"{bad[0]}: what made them diverged, or the file is damaged; name another model"
        )


_ADAPTER = "adapter_config.json"
_READ = (".safetensors", ".json", ".txt", ".model")
"""Suffixes of the files that are read of a model's folder; `.bin` in their place."""
_EXPECTED = "expected config.json, model.safetensors and the tokenizer's files of one model"


@dataclass(frozen=True)
class Pretrained:
    """A Hugging Face folder or hub name; anything wrong with it is one SightlineError.

    Student, teachers, grounders and SAM 2 are loaded only by these methods. They run no code from
    the folder, silence the libraries, and try a hub that does not respond only once.

    Attributes:
        name: of the folder or the hub model; ``NAME@REVISION`` gives both.
        revision: of a hub model; empty for its main branch.
        subfolder: of the folder or hub model that holds the files.
    """

    name: str
    revision: str = ""
    subfolder: str = ""

    def __post_init__(self) -> None:
        name, at, revision = self.name.rpartition("@")
        if at and self.folder is None:
            object.__setattr__(self, "name", name)
            object.__setattr__(self, "revision", revision)
        if self.folder is None:
            from huggingface_hub.errors import HFValidationError
            from huggingface_hub.utils import validate_repo_id

            try:
                validate_repo_id(self.name)
            except HFValidationError as error:
                raise SightlineError(
                    f"{self.name}: there is no such folder, and this is not a valid hub name; "
                    "name a folder or a hub model"
                ) from error
        elif self.revision:
            raise SightlineError(
                f"{self.name}: a folder has no revision {self.revision!r}; remove it"
            )
        elif not self._has("config.json") and self._has("model/config.json"):
            raise SightlineError(f"{self.name}: is a run; its model is {self.name}/model, name it")
        else:
            self._refuse_adapter()

    @property
    def folder(self) -> Path | None:
        """Where the files are; None for a hub model."""
        return Path(self.name, self.subfolder) if Path(self.name).is_dir() else None

    def _has(self, file: str) -> bool:
        return self.folder is not None and (self.folder / file).is_file()

    def _refuse_adapter(self) -> None:
        """Refuse weights of LoRA beside the model or alone: transformers would apply them."""
        places = {self, replace(self, subfolder="")} if self.subfolder else {self}
        if any(place.files([_ADAPTER]) for place in places):
            raise SightlineError(
                f"{self.name}: holds an adapter ({_ADAPTER}), so its weights are not the ones that "
                "compute. Merge it with peft, `PeftModel.from_pretrained(AutoModel.from_pretrained("
                "BASE), ADAPTER).merge_and_unload().save_pretrained(NEW)`, where BASE is the model "
                "without the adapter's files and ADAPTER a folder of those; save the tokenizer of "
                "BASE to NEW, and name NEW. Or name BASE, and train adapters here with lora_rank"
            )

    @property
    def location(self) -> str:
        """What libraries are given: the absolute path of the folder, or the hub name."""
        return os.path.abspath(self.name) if self.folder else self.name  # noqa: PTH100

    @property
    def title(self) -> str:
        """Its name in records: the folder's own name, never its path, or the hub name."""
        return self.folder.resolve().name if self.folder else self.name

    def pinned(self) -> Pretrained:
        """The same model, of the hub at the commit that its revision is now."""
        if self.folder:
            return self
        self._refuse_adapter()
        with self.reading("configuration", silent=False):
            config = self._path_of("config.json", must_know=True)
        if config is None:
            raise SightlineError(f"{self.name}: not a model: no config.json there; {_EXPECTED}")
        return replace(self, revision=commit_of(config))

    def config(self, kind: Any = None) -> Any:
        """config.json, as a configuration of transformers.

        Args:
            kind: the class to read it as; None: as its ``model_type`` says.
        """
        if self.folder and not self._has("config.json"):
            raise SightlineError(f"{self.folder}: not a model: no config.json here; {_EXPECTED}")
        if not self.folder:
            self._refuse_adapter()
        with self.reading("configuration"):
            if kind is None:
                from transformers import AutoConfig as kind
            settings = kind.from_pretrained(self.location, **self._where())
        for part in (settings, *(getattr(settings, name, None) for name in settings.sub_configs)):
            kernel = str(getattr(part, "_attn_implementation", None) or "")
            if "/" in kernel:  # transformers would download it from the hub and run it
                raise SightlineError(
                    f"{self.name}: its config.json has attention computed by the code of "
                    f"{kernel!r}, which Sightline never runs; remove attn_implementation from it"
                )
        return settings

    def tokenizer(self) -> Any:
        """The tokenizer; one without a vocabulary is refused."""
        from transformers import AutoTokenizer  # it needs torch

        with self.reading("tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(self.location, **self._where())
        return self._with_words(tokenizer)

    def image_processor(self) -> Any:
        """Image processing alone: how a vision model's images are resized and normalised."""
        from transformers import AutoImageProcessor  # it requires the vision libraries

        with self.reading("image processor"):
            return AutoImageProcessor.from_pretrained(self.location, **self._where())

    def processor(self) -> Any:
        """Image processing, tokenizer and post-processing; the tokenizer needs a vocabulary."""
        from transformers import AutoProcessor  # it requires the vision libraries

        with self.reading("processor"):
            processor: Any = AutoProcessor.from_pretrained(self.location, **self._where())
            tokenizer = processor.tokenizer
        self._with_words(tokenizer)
        return processor

    def model(self, architecture: Any, config: Any, *, unpickle: bool = False) -> Any:
        """The model in float32 on the CPU, in evaluation mode, with exactly its own weights.

        A pooler without weights (a masked language model saves none) is dropped, so that one with
        random weights is never used.

        Args:
            architecture: class of transformers, such as ``AutoModel``.
            config: see `config`.
            unpickle: read ``pytorch_model.bin`` if there are no safetensors. For teachers only:
                those of the papers (princeton-nlp/unsup-simcse-…) were published in no other
                format. transformers reads it with ``torch.load(weights_only=True)``, which builds
                tensors and refuses a pickle that would do more; and a teacher is identified by
                the digest of its tensors, a student by its safetensors files.
        """
        import torch

        patterns = ["*.safetensors", *(["pytorch_model*.bin"] if unpickle else [])]
        if self.folder and not any(any(self.folder.glob(pattern)) for pattern in patterns):
            raise SightlineError(
                f"{self.folder}: no weights here ({' or '.join(patterns)}), and Sightline does not "
                "unpickle others; convert them with transformers: model.save_pretrained(folder)"
            )
        if not unpickle and self._is_only_a_pickle():
            raise SightlineError(
                f"{self.name}: cached here only as pytorch_model.bin, which Sightline does not "
                "unpickle for a model that is trained or scored; convert it with transformers: "
                "model.save_pretrained(folder)"
            )
        with self.reading("weights"):
            model, report = architecture.from_pretrained(
                self.location,
                config=config,
                dtype=torch.float32,
                use_safetensors=None if unpickle else True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                **self._where(),
            )
        missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
        unlike = [
            f"{key} is {list(actual)}, expected {list(expected)}"
            for key, actual, expected in sorted(report["mismatched_keys"])
        ]
        if missing or unlike:
            remedy = "Check that config.json and the weights belong together"
            if any("_orig_mod." in key for key in report["unexpected_keys"]):
                remedy = (
                    "The names that are there are those of torch.compile, with _orig_mod.; save "
                    "what it compiled: model._orig_mod.save_pretrained(folder)"
                )
            raise SightlineError(
                f"{self.name}: its weights lack {len(missing)} tensors of the model and "
                f"{len(unlike)} have the wrong shape ({', '.join((missing + unlike)[:3])}); they "
                f"would be random. {remedy}"
            )
        if report["missing_keys"]:
            model.pooler = None
        check_finite(self.name, model)
        return model.eval()

    def files(self, names: Iterable[str]) -> dict[str, Path]:
        """Those of the files ``names`` that the model has: name → where it lies here."""
        with self.reading("files", silent=self.folder is None):
            paths = {name: self._path_of(name, must_know=False) for name in names}
        return {name: path for name, path in paths.items() if path is not None}

    def json(self, name: str, *, or_give: str = "") -> Any:
        """Content of a JSON file beside the model; None if there is no such file.

        Args:
            or_give: an option that makes the file unnecessary. With it, an unreachable hub is an
                error; without it, a file that the cache does not know counts as missing.
        """
        part = f"{name} (or give {or_give})" if or_give else name
        with self.reading(part, silent=self.folder is None):
            path = self._path_of(name, must_know=bool(or_give))
            return None if path is None else json.loads(path.read_text(encoding="utf-8"))

    def _is_only_a_pickle(self) -> bool:
        """Whether a hub model is in the cache without safetensors, and nothing else is reached."""
        if self.folder or self.files(["model.safetensors", "model.safetensors.index.json"]):
            return False
        from huggingface_hub import try_to_load_from_cache

        file, revision = str(PurePosixPath(self.subfolder, "pytorch_model.bin")), self.revision
        return isinstance(try_to_load_from_cache(self.name, file, revision=revision or None), str)

    def _path_of(self, name: str, must_know: bool) -> Path | None:
        if self.folder:
            path = self.folder / name
            return path if path.is_file() else None
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        file, revision = str(PurePosixPath(self.subfolder, name)), self.revision or None
        try:
            return Path(hf_hub_download(self.name, file, revision=revision))
        except LocalEntryNotFoundError:  # the hub was not reached
            cached = try_to_load_from_cache(self.name, file, revision=revision)
            if must_know and cached is not _CACHED_NO_EXIST:
                raise
            return None
        except EntryNotFoundError:
            return None

    @contextmanager
    def reading(self, part: str, *, silent: bool = True) -> Iterator[None]:
        """Silence the libraries, and turn anything they raise into one SightlineError.

        Args:
            part: is being read, such as ``weights``.
            silent: False where none of them is used, so that none is imported for it.
        """
        name = f"{self.name} (no such folder here, so a hub name)"
        fetching = nullcontext() if self.folder else from_hub(name, part)
        try:
            with quiet() if silent else nullcontext(), fetching:
                yield
        except SightlineError:
            raise
        except pickle.UnpicklingError as error:
            raise self._misnamed() or SightlineError(
                f"{self.name}: its {part} are a pickle that would run code, which Sightline never "
                "allows; name a model with safetensors"
            ) from error
        except Exception as error:  # transformers has no base class for errors of invalid files
            if "trust_remote_code" in str(error):
                raise SightlineError(
                    f"{self.name}: it needs code from its own repository, which Sightline never "
                    "runs; name a model that transformers supports natively"
                ) from error
            raise self._misnamed() or SightlineError(
                f"{self.name}: its {part} cannot be read ({first_lines(error)}); {_EXPECTED}"
            ) from error

    def _misnamed(self) -> SightlineError | None:
        """The error for a file of the folder that is not what its name says; None: there is none.

        transformers chooses and reads files by their names.
        """
        files = (
            sorted(path for path in self.folder.iterdir() if path.is_file()) if self.folder else []
        )
        has_safetensors = any(path.suffix == ".safetensors" for path in files)
        for path in files:
            with suppress(OSError):
                kind, suffix = file_kind(path), path.suffix
                is_read = suffix in _READ or (suffix == ".bin" and not has_safetensors)
                if kind == "lfs" and is_read:
                    return unexpected(path, kind, _EXPECTED.removeprefix("expected "))
                if kind == "safetensors" and suffix == ".bin" and is_read:
                    return SightlineError(
                        f"{path}: a safetensors file, and transformers reads it as its name says; "
                        "rename it to model.safetensors"
                    )
                if kind == "pytorch" and suffix == ".safetensors":
                    return SightlineError(
                        f"{path}: a PyTorch pickle, and transformers reads it as its name says; "
                        "rename it to pytorch_model.bin, which a teacher may have; for any other "
                        "model load that with transformers and write model.save_pretrained(FOLDER)"
                    )
        return None

    def _with_words(self, tokenizer: Any) -> Any:
        # for a folder without a tokenizer transformers makes one to which every word is unknown
        words = len(tokenizer) - len(set(tokenizer.all_special_tokens))
        if words <= 3 and (fault := self._misnamed()):  # a pointer of Git LFS has three lines
            raise fault
        if words <= 0:
            raise SightlineError(
                f"{self.name}: its tokenizer has only special tokens, because its "
                "vocabulary is missing; expected tokenizer.json, or vocab.txt (BERT), or "
                "vocab.json and merges.txt (RoBERTa); save the tokenizer beside the model"
            )
        return tokenizer

    def _where(self) -> dict[str, Any]:
        where = {"revision": self.revision or "main", "subfolder": self.subfolder}
        return {**where, "trust_remote_code": False}
