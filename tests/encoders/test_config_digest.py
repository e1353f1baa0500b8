"""What a fingerprint says of a model's config.json, and what no config may choose."""

import json
import shutil

import pytest
import torch
from tiny_models import CLIP, bert_folder, clip_config

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.names import named_encoder
from sightline import FeatureSet, SightlineError, extract_features
from sightline.models.config_digest import WITHOUT_EFFECT, config_sha256
from sightline.models.pretrained import Pretrained

TEXTS = ["a red cat runs", "a dog sits", "a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("config") / "bert")


def edited(folder, target, file="config.json", **changes):
    """A copy of a model with other values in one of its files."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    content = json.loads((target / file).read_text()) if (target / file).exists() else {}
    (target / file).write_text(json.dumps({**content, **changes}))
    return target


def teacher(folder):
    config = named_encoder(str(folder), "pretrained", "teacher")
    return config.build_text(torch.device("cpu"), "fp32")


def digest(folder):
    return config_sha256(Pretrained(str(folder)))


VALUES = {  # of keys without effect that transformers checks when it reads them
    "architectures": ["BertForMaskedLM"],
    "auto_map": {},
    "dtype": "bfloat16",
    "torch_dtype": "float16",
    "id2label": {"0": "cat", "1": "dog", "2": "cow"},
    "label2id": {"cat": 0, "dog": 1, "cow": 2},
    "num_labels": 3,
    "problem_type": "regression",
    "task_specific_params": {"a": 1},
    "transformers_version": "4.2.1",
    "tokenizer_class": "BertTokenizer",
    "layerdrop": 0.3,
} | dict.fromkeys(
    ["output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "use_cache",
     "torchscript", "gradient_checkpointing"], True,
)  # fmt: skip


@pytest.mark.parametrize("key", sorted(" ".join(WITHOUT_EFFECT.values()).split()))
def test_what_is_left_out_changes_no_row(folder, tmp_path, key):
    numbers = 0.25 if any(part in key for part in ("drop", "factor", "range")) else "x"
    other = edited(folder, tmp_path / "bert", **{key: VALUES.get(key, numbers)})
    assert digest(other) == digest(folder)
    if not key.startswith(("output", "return", "use_return")):  # else only more comes back
        rows = teacher(folder).encode(TEXTS, 16)
        torch.testing.assert_close(teacher(other).encode(TEXTS, 16), rows, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 4},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-3},
        {"rope_theta": 500000.0},
        {"position_embedding_type": "relative_key"},
        {"of_a_later_release": None},
    ],
)
def test_every_other_key_counts_wherever_it_is(folder, tmp_path, change):
    assert digest(edited(folder, tmp_path / "one", **change)) != digest(folder)
    inside = {"text_config": change | {"hidden_size": 3}}
    plain = edited(folder, tmp_path / "two", text_config={"hidden_size": 3})
    assert digest(edited(folder, tmp_path / "three", **inside)) != digest(plain)
    labelled = {"text_config": {"hidden_size": 3, "id2label": {"0": "cat"}}}
    assert digest(edited(folder, tmp_path / "four", **labelled)) == digest(plain)


def test_a_digest_is_of_the_file_and_not_of_what_a_release_makes_of_it(folder, monkeypatch):
    from transformers import PretrainedConfig

    before, identity = digest(folder), teacher(folder).preprocessing
    to_dict = PretrainedConfig.to_dict
    grown = {"default_of_a_later_release": 1}
    monkeypatch.setattr(PretrainedConfig, "to_dict", lambda self: {**to_dict(self), **grown})
    assert digest(folder) == before
    assert teacher(folder).preprocessing == identity
    spaced = json.dumps(json.loads((folder / "config.json").read_text()), indent=7)
    (folder / "config.json").write_text(spaced)  # parsed, so its layout is nothing
    assert digest(folder) == before


def test_a_set_is_never_extended_or_filled_by_another_configuration(folder, tmp_path):
    """Weights of one folder under another number of heads give rows of cosine 0.9."""
    other = edited(folder, tmp_path / "bert", num_attention_heads=8, hidden_act="relu")
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:1]))
    (tmp_path / "all.txt").write_text("\n".join(TEXTS))

    def extract(model, texts, name):
        config = EncoderConfig.model_validate(
            {"family": "transformers", "model": str(model), "weights": "pretrained"}
        )
        data = tmp_path / f"{texts}.txt"
        return extract_features(data, config, tmp_path / "sets" / name, "teacher", device="cpu")

    first = extract(folder, "few", "mixed")
    kept = first.take(first.keys).copy()
    mixed, alone = extract(other, "all", "mixed"), extract(other, "all", "alone")
    assert (mixed.take(alone.keys) == alone.take(alone.keys)).all()
    assert not (mixed.take(first.keys) == kept).all()
    assert mixed.fingerprint == alone.fingerprint != first.fingerprint
    assert "config_sha256" in "".join(mixed.record.spec.differences(first.record.spec))
    with pytest.raises(SightlineError, match="rerun its stage"):
        FeatureSet.open(tmp_path / "sets/mixed", first.fingerprint)


def hugging_face_clip(folder, bert, **text):
    """The JSON of an open_clip model whose text tower is a model of transformers."""
    tower = {"hf_model_name": str(bert), "hf_tokenizer_name": str(bert), "hf_proj_type": "linear"}
    return clip_config(folder, text_cfg={**tower, "hf_pooler_type": "mean_pooler", **text})


def clip_text(path, weights="random:0"):
    config = named_encoder(path, weights, "text")
    return config.build_text(torch.device("cpu"), "fp32")


def test_a_hugging_face_tower_of_open_clip_has_its_configuration_too(folder, tmp_path):
    tower = clip_text(hugging_face_clip(tmp_path, folder, context_length=12))
    assert tower.preprocessing["config_sha256"] == digest(folder)
    assert "config_sha256" not in clip_text(clip_config(tmp_path)).preprocessing


def test_a_tower_beside_its_model_config_is_the_same_in_every_folder(folder, tmp_path, monkeypatch):
    names = []
    for place in ("first", "second"):
        beside = tmp_path / place / "models"
        shutil.copytree(folder, beside / "tower")
        tower = {"hf_model_name": "tower", "hf_tokenizer_name": "tower", "context_length": 12}
        config = hugging_face_clip(beside, folder, **tower)
        monkeypatch.chdir(tmp_path / place)  # where there is no folder of that name
        text = clip_text(config)
        assert text.preprocessing["config_sha256"] == digest(folder)
        names.append(text.identity.name)
    absolute = [
        clip_text(hugging_face_clip(tmp_path / place, tmp_path / place / "models/tower"))
        for place in ("first", "second")
    ]
    assert names[0] == names[1]
    assert absolute[0].identity.name == absolute[1].identity.name
    edited = tmp_path / "second/models/tower/config.json"
    edited.write_text(json.dumps({**json.loads(edited.read_text()), "num_attention_heads": 1}))
    assert clip_text(config).identity.name != names[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"cache_dir": "/tmp"}, "cache_dir"),
        ({"clean": "none"}, "clean"),
        ({"code_revision": "main"}, "code_revision"),
    ],
)
def test_a_model_config_chooses_no_option_that_is_not_listed(folder, tmp_path, options, named):
    for text in ({"tokenizer_kwargs": options}, {"tokenizer_kwargs": options, **CLIP["text_cfg"]}):
        path = hugging_face_clip(tmp_path, folder, **text)
        if "width" in text:
            path = clip_config(tmp_path, text_cfg=text)
        with pytest.raises(SightlineError, match=rf"text_cfg\.tokenizer_kwargs\.{named}"):
            clip_text(path)


def test_the_options_of_published_models_are_allowed(folder, tmp_path):
    for options in ({"clean": "canonicalize"}, {"strip_sep_token": True}):
        path = hugging_face_clip(tmp_path, folder, context_length=12, tokenizer_kwargs=options)
        assert clip_text(path).preprocessing["tokenizer_options"] == options


def needing_code(folder, target):
    """A copy that only code of its own folder can build; the code would write a file."""
    ran = target / "ran"
    edited(
        folder,
        target,
        model_type="mine",
        auto_map={"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine"},
    )
    edited(folder, target, "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    edited(folder, target, model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    (target / "mine.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    return target, ran


def test_no_config_has_code_run(folder, tmp_path):
    mine, ran = needing_code(folder, tmp_path / "mine")
    with pytest.raises(SightlineError, match="code from its own repository"):
        teacher(mine)
    with pytest.raises(SightlineError, match="code from its own repository"):
        clip_text(hugging_face_clip(tmp_path, mine))
    shutil.copy(folder / "config.json", mine / "config.json")
    # whose tokenizer transformers has too
    clip_text(hugging_face_clip(tmp_path, folder, context_length=12, hf_tokenizer_name=str(mine)))
    assert not ran.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_no_config_has_a_kernel_of_the_hub_run(folder, tmp_path, key):
    other = edited(folder, tmp_path / "bert", **{key: "kernels-community/flash-attn"})
    with pytest.raises(SightlineError, match="the code of 'kernels-community/flash-attn'"):
        teacher(other)
