"""Unsafe and incomplete folders, for every loader: one clear error, no code run, no noise."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from tiny_encoder import make_encoder
from tiny_grounders import save_florence
from tiny_models import bert_folder
from tiny_sam2 import hf_config

from pipeline.encoders.config import EncoderConfig
from pipeline.grounding.settings import GrounderSettings, SegmenterSettings
from sightline.errors import SightlineError
from sightline.models.pretrained import Pretrained
from sightline.models.sentence_transformers_folder import (
    load_model,
    load_tokenizer,
    pin,
    read_recipe,
)
from train.run_spec import StudentConfig
from train.student import load_student

CPU = torch.device("cpu")


def student(model: str, weights: str) -> object:
    return load_student(StudentConfig(name="student", model=model, max_length=16))


def teacher(model: str, weights: str) -> Any:
    given = {"family": "transformers", "model": model, "weights": weights}
    return EncoderConfig.model_validate(given).build_text(CPU, "fp32")


def grounder(model: str, weights: str) -> object:
    given = {"family": "florence2", "model": model, "weights": weights, "max_length": 16}
    return TypeAdapter(GrounderSettings).validate_python(given).build(CPU, "fp32")


def segmenter(model: str, weights: str) -> object:
    given = {"family": "sam2-hf", "model": model, "weights": weights}
    return TypeAdapter(SegmenterSettings).validate_python(given).build(CPU, "fp32")


LOADERS = {load.__name__: load for load in (student, teacher, grounder, segmenter)}
WIDTH = {
    "student": ["hidden_size"],
    "teacher": ["hidden_size"],
    "grounder": ["text_config", "d_model"],
    "segmenter": ["mask_decoder_config", "hidden_size"],
}
HEADS = {
    "student": ["num_attention_heads"],
    "teacher": ["num_attention_heads"],
    "grounder": ["text_config", "decoder_attention_heads"],
    "segmenter": ["mask_decoder_config", "num_attention_heads"],
}
"""Where config.json holds them."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """A valid folder for each loader."""
    from transformers import Sam2Model

    root = tmp_path_factory.mktemp("whole")
    for part in make_encoder():
        part.save_pretrained(root / "student")
    bert_folder(root / "teacher")
    save_florence(root / "grounder")
    Sam2Model(hf_config()).save_pretrained(root / "segmenter")
    return {kind: root / kind for kind in LOADERS}


@pytest.fixture(params=LOADERS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def folder(kind: str, whole: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return shutil.copytree(whole[kind], tmp_path / "spoilt")


@pytest.fixture
def load(kind: str, capfd, tmp_path: Path) -> Callable[..., object]:
    """Load by that loader; afterwards no code was run and nothing was printed."""

    def quietly(model: Path | str, weights: str = "pretrained") -> object:
        capfd.readouterr()
        try:
            return LOADERS[kind](str(model), weights)
        finally:
            assert tuple(capfd.readouterr()) == ("", "")
            assert not (tmp_path / "code-was-run").exists()

    return quietly


def change(path: Path, keys: list[str], value: object) -> None:
    """Set a value in the JSON file ``path``."""
    content = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


def code(folder: Path) -> str:
    """Python that leaves a trace."""
    return f"open({str(folder.parent / 'code-was-run')!r}, 'w').close()"


class Harmful:
    """A pickle of it runs code."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __reduce__(self):
        return exec, (self.source,)


def no_config(folder: Path, kind: str) -> None:
    (folder / "config.json").unlink()


def config_is_no_json(folder: Path, kind: str) -> None:
    (folder / "config.json").write_text("{")


def config_is_a_list(folder: Path, kind: str) -> None:
    (folder / "config.json").write_text("[1]")


def negative_width(folder: Path, kind: str) -> None:
    change(folder / "config.json", WIDTH[kind], -4)


def width_is_a_word(folder: Path, kind: str) -> None:
    change(folder / "config.json", WIDTH[kind], "wide")


def no_heads(folder: Path, kind: str) -> None:
    change(folder / "config.json", HEADS[kind], 0)


def kernel_of_a_stranger(folder: Path, kind: str) -> None:
    change(folder / "config.json", ["attn_implementation"], "someone/kernels")


def code_for_the_model(folder: Path, kind: str) -> None:
    change(folder / "config.json", ["model_type"], "own")
    change(folder / "config.json", ["auto_map"], {"AutoConfig": "own.Config", "AutoModel": "own.M"})
    (folder / "own.py").write_text(code(folder))


def no_weights(folder: Path, kind: str) -> None:
    (folder / "model.safetensors").unlink()


def truncated_weights(folder: Path, kind: str) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:900])


def weights_are_a_harmful_pickle(folder: Path, kind: str) -> None:
    no_weights(folder, kind)
    torch.save({"a": Harmful(code(folder))}, folder / "pytorch_model.bin")


def index_of_a_harmful_pickle(folder: Path, kind: str) -> None:
    tensors, _ = some_tensors(folder)
    weights_are_a_harmful_pickle(folder, kind)
    (folder / "pytorch_model.bin").rename(folder / "harmful.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "harmful.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"x": torch.ones(1)}, folder / "other.safetensors")


def some_tensors(folder: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The weights, and the names of two tensors that every pooling needs."""
    tensors = load_file(folder / "model.safetensors")
    return tensors, sorted(name for name in tensors if name.endswith(".bias"))[:2]


def missing_weights(folder: Path, kind: str) -> list[str]:
    tensors, names = some_tensors(folder)
    for name in names:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return names


def weights_of_another_shape(folder: Path, kind: str) -> list[str]:
    tensors, names = some_tensors(folder)
    for name in names:
        tensors[name] = torch.zeros(3, 5)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return [*names, "[3, 5]"]


def weights_with_nan(folder: Path, kind: str) -> list[str]:
    tensors, names = some_tensors(folder)
    tensors[names[0]][0] = torch.nan
    tensors[names[1]][0] = torch.inf
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return ["name another model"]


def an_adapter_beside(folder: Path, kind: str) -> None:
    (folder / "adapter_config.json").write_text("{}")


def an_adapter_alone(folder: Path, kind: str) -> None:
    an_adapter_beside(folder, kind)
    no_config(folder, kind)
    no_weights(folder, kind)


def weights_of_a_compiled_module(folder: Path, kind: str) -> None:
    tensors, _ = some_tensors(folder)
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def no_words(folder: Path, kind: str) -> None:
    if kind == "segmenter":
        pytest.skip("a segmenter reads no text")
    for path in folder.iterdir():
        if path.name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            path.unlink()


SPOILT = {
    no_config: "no config.json here",
    config_is_no_json: "its configuration cannot be read",
    config_is_a_list: "its configuration cannot be read",
    negative_width: "cannot be read .*(negative|-4)",
    width_is_a_word: "cannot be read .*(expected int|must be tuple of ints)",
    no_heads: "cannot be read",
    code_for_the_model: "code from its own repository, which Sightline never runs",
    no_weights: "no weights here",
    truncated_weights: "its weights cannot be read",
    weights_are_a_harmful_pickle: "no weights here|a pickle that would run code",
    index_of_a_harmful_pickle: "a pickle that would run code",
    missing_weights: "its weights lack 2 tensors of the model and 0 have the wrong shape",
    weights_of_another_shape: "its weights lack 0 tensors of the model and 2 have the wrong shape",
    weights_of_a_compiled_module: r"those of torch\.compile, .* model\._orig_mod\.save_pretrained",
    weights_with_nan: "2 of [0-9]+ weights hold NaN or infinite values, such as",
    an_adapter_beside: r"holds an adapter \(adapter_config\.json\)",
    an_adapter_alone: r"holds an adapter \(adapter_config\.json\)",
    no_words: "has only special tokens|its processor cannot be read",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_a_spoilt_folder_is_one_clear_error(folder, kind, load, spoil):
    named = spoil(folder, kind) or []
    with pytest.raises(SightlineError, match=f"^{folder}: .*({SPOILT[spoil]})") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt"])
def test_a_file_that_git_lfs_has_not_fetched_is_called_that(folder, kind, load, name):
    if name == "vocab.txt":
        if kind != "teacher":
            pytest.skip("only the teacher's words are one a line")
        (folder / "tokenizer.json").unlink(missing_ok=True)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 46830571\n"
    (folder / name).write_text(pointer)
    expected = f"^{folder / name}: a Git LFS pointer, .*`git lfs pull`"
    with pytest.raises(SightlineError, match=expected):
        load(folder)


def test_weights_under_the_name_of_the_other_format(folder, kind, load):
    pickled, weights = folder / "pytorch_model.bin", folder / "model.safetensors"
    tensors, _ = some_tensors(folder)
    if kind == "teacher":  # others never read .bin
        weights.rename(pickled)
        with pytest.raises(SightlineError, match=f"^{pickled}: a safetensors file, .* rename it"):
            load(folder)
        pickled.rename(weights)
        assert load(folder) is not None
    weights.unlink()  # the tensors are mapped from it
    torch.save(tensors, weights)
    with pytest.raises(SightlineError, match=f"^{weights}: a PyTorch pickle, .* rename it"):
        load(folder)
    if kind == "teacher":
        weights.rename(pickled)
        assert load(folder) is not None


def test_the_kernel_of_a_stranger_is_never_fetched(folder, kind, load):
    kernel_of_a_stranger(folder, kind)
    said = ""
    try:
        assert load(folder) is not None  # earlier versions of transformers ignore the name
    except SightlineError as error:
        said = str(error)
    assert not said or "which Sightline never runs" in said
    assert "kernels" not in sys.modules


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("modules.json", "{"),
        ("modules.json", "[1]"),
        ("sentence_bert_config.json", "[1]"),
        ("sentence_bert_config.json", '{"max_seq_length": "wide"}'),
    ],
)
def test_invalid_sentence_transformers_settings(whole, tmp_path, file, text):
    for kind in ("student", "teacher"):
        folder = shutil.copytree(whole[kind], tmp_path / kind)
        modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / file).write_text(text)
        if (kind, file) != ("teacher", "modules.json"):  # which a teacher does not read
            with pytest.raises(SightlineError, match=f"^{folder}: its .* cannot be read"):
                LOADERS[kind](str(folder), "pretrained")


def test_a_valid_folder_loads(folder, load):
    assert load(folder) is not None


def test_code_beside_a_model_is_never_run(folder, kind, load):
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code(folder))
    (folder / "own.py").write_text(code(folder))
    if kind != "segmenter":
        change(folder / "tokenizer_config.json", ["auto_map"], {"AutoTokenizer": [None, "own.T"]})
    change(folder / "config.json", ["auto_map"], {"AutoConfig": "own.C", "AutoModel": "own.M"})
    assert load(folder) is not None


@pytest.mark.parametrize("name", ["gone", "gone/deeper", "config.json"])
def test_a_path_that_is_not_a_folder(folder, load, name):
    with pytest.raises(SightlineError, match=f"^{folder / name}: there is no such folder"):
        load(folder / name)


def test_an_unknown_name(load):
    with pytest.raises(SightlineError, match=r"^no-such/model \(no such folder.*cannot be fetched"):
        load("no-such/model")


def test_a_folder_has_no_revision(folder, kind, load):
    with pytest.raises(SightlineError, match=f"^{folder}: a folder has no revision 'main'"):
        Pretrained(str(folder), "main") if kind == "student" else load(folder, "pretrained:main")


def as_pickle(folder: Path) -> None:
    """Its weights as older models were published."""
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()


def test_pickled_tensors_are_only_for_teachers(folder, kind, load):
    as_pickle(folder)
    if kind == "teacher":
        assert load(folder) is not None
    else:
        with pytest.raises(SightlineError, match=f"^{folder}: no weights here .*does not unpickle"):
            load(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Callable[[Path], Path]:
    """Put a folder into a cache as the hub model ``papers/model``; gives its place in there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    def put(folder: Path) -> Path:
        place = tmp_path / "cache" / "models--papers--model"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("c" * 40)
        shutil.copytree(folder, place / "snapshots" / ("c" * 40))
        return place

    return put


def test_a_teacher_of_the_papers_comes_from_the_hub_as_a_pickle(whole, tmp_path, hub):
    folder = shutil.copytree(whole["teacher"], tmp_path / "published")
    as_pickle(folder)
    place = hub(folder)
    with pytest.raises(SightlineError, match=r"sentence_bert_config\.json \(or give max_length\)"):
        teacher("papers/model", "pretrained")  # the cache cannot tell whether there is one
    absent = place / ".no_exist" / ("c" * 40)
    absent.mkdir(parents=True)
    (absent / "sentence_bert_config.json").touch()
    found = teacher("papers/model", "pretrained").identity
    assert (found.name, found.revision) == ("transformers/papers/model", "c" * 40)
    known = teacher(str(whole["teacher"]), "pretrained").identity
    assert found.weights_sha256 == known.weights_sha256


def test_a_hub_student_is_known_by_its_commit_wherever_its_files_lie(whole, tmp_path, hub):
    folder = tmp_path / "published"
    shutil.copytree(whole["student"], folder / "0_Transformer")
    module = {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    place = hub(folder)
    assert pin("papers/model").revision == "c" * 40
    for part in ("0_Transformer/config.json", "1/config.json"):
        absent = place / ".no_exist" / ("c" * 40) / part
        absent.parent.mkdir(parents=True, exist_ok=True)
        absent.touch()
    (place / "snapshots" / ("c" * 40) / "0_Transformer/config.json").unlink()
    with pytest.raises(SightlineError, match=r"^papers/model: not a model: no config\.json there"):
        pin("papers/model")


def test_a_hub_student_is_never_a_pickle(whole, tmp_path, hub):
    folder = shutil.copytree(whole["student"], tmp_path / "published")
    place = hub(folder)
    assert load_model("papers/model", read_recipe("papers/model")) is not None
    assert pin("papers/model").revision == "c" * 40
    as_pickle(place / "snapshots" / ("c" * 40))
    with pytest.raises(SightlineError, match=r"^papers/model: cached here only as pytorch"):
        load_model("papers/model", read_recipe("papers/model"))


def tokenizer_of(model: str) -> object:
    return load_tokenizer(model, read_recipe(model))


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_an_adapter_of_the_hub_or_above_the_model_is_refused(whole, tmp_path, hub, place):
    folder = tmp_path / "published"
    shutil.copytree(whole["student"], folder / "0_Transformer")
    module = {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    (folder / place / "adapter_config.json").write_text("{}")
    hub(folder)
    for name in (str(folder), "papers/model"):
        for load in (lambda model: student(model, "pretrained"), pin, tokenizer_of):
            with pytest.raises(SightlineError, match=f"^{name}: holds an adapter"):
                load(name)


def test_a_merged_adapter_is_a_student(whole, tmp_path):
    """The remedy of the refusal."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModel, AutoTokenizer

    base, adapter, merged = whole["student"], tmp_path / "adapter", tmp_path / "merged"
    layers = LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    adapted = get_peft_model(AutoModel.from_pretrained(base), layers)
    adapted.save_pretrained(str(adapter))
    PeftModel.from_pretrained(
        AutoModel.from_pretrained(base), str(adapter)
    ).merge_and_unload().save_pretrained(merged)
    AutoTokenizer.from_pretrained(base).save_pretrained(merged)
    embedder, _ = student(str(merged), "")
    ids = torch.tensor([[2, 5, 6, 3]])
    expected = adapted.eval()(input_ids=ids).last_hidden_state
    torch.testing.assert_close(embedder.model(input_ids=ids).last_hidden_state, expected)
    assert pin(merged).weights_sha256 != pin(base).weights_sha256
