"""Encoders in the layouts of published folders: the same rows as of those transformers writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from image_files import photograph
from open_clip.push_to_hf_hub import save_for_hf
from published_folders import WEIGHTS, add_tensors, edit, in_half
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from test_vision import MODELS, SQUARE, TEXT, TOWERS, encoder, ours
from tiny_encoder import make_encoder
from tiny_models import CLIP, bert_folder
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    AutoTokenizer,
    DINOv3ConvNextConfig,
    DINOv3ConvNextModel,
    DINOv3ViTImageProcessor,
    GemmaTokenizer,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

from pipeline.encoders.names import named_encoder
from sightline.errors import SightlineError

CPU = torch.device("cpu")
PIXELS = [torch.arange(40 * 50 * 3).reshape(40, 50, 3).to(torch.uint8).numpy()]
POSITIONS = torch.arange(40)[None]


@pytest.fixture
def saved(tmp_path) -> Any:
    def save(name: str) -> Path:
        for part in (*MODELS[name], make_encoder()[1]):
            part.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def texts(folder: Path, **fields: object) -> torch.Tensor:
    built = encoder(folder, **fields).build_text(CPU, "fp32")
    return built.encode(["a dog"], built.lengths(["a dog"])[0])


@pytest.mark.parametrize("name", MODELS)
def test_image_processors_under_their_older_names(saved, name):
    folder = saved(name)
    file, expected = folder / "preprocessor_config.json", ours(folder, PIXELS)
    values = json.loads(file.read_text())
    now = values.pop("image_processor_type")
    old = now.replace("ImageProcessor", "FeatureExtractor")
    for key, kind in (("image_processor_type", f"{now}Fast"), ("feature_extractor_type", old)):
        file.write_text(json.dumps({**values, key: kind}))
        assert torch.equal(ours(folder, PIXELS), expected)


def test_clip_as_openai_published_it(saved):
    folder = saved("clip")
    images, words = ours(folder, PIXELS), texts(folder)
    values = json.loads((folder / "preprocessor_config.json").read_text())
    kept = ("do_center_crop", "do_normalize", "do_resize", "image_mean", "image_std", "resample")
    old = {"crop_size": 32, "size": 32, "feature_extractor_type": "CLIPFeatureExtractor"}
    old |= {key: values[key] for key in kept}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    add_tensors(
        folder,
        {
            "text_model.embeddings.position_ids": POSITIONS[:, :12].clone(),
            "vision_model.embeddings.position_ids": POSITIONS[:, :17].clone(),
        },
    )
    # where a tensor begins in the file decides how the CPU reads it, and so its last bits
    assert torch.allclose(ours(folder, PIXELS), images, atol=1e-6)
    assert torch.allclose(texts(folder), words, atol=1e-6)
    in_half(folder)
    assert torch.allclose(ours(folder, PIXELS), images, atol=0.02)


def test_siglip_2_of_a_fixed_size_is_a_siglip(saved):
    folder = saved("siglip")
    images, words = ours(folder, PIXELS), texts(folder)
    edit(folder / "preprocessor_config.json", {"processor_class": "SiglipProcessor"})
    edit(folder / "config.json", {"torch_dtype": "float32"}, ("dtype",))
    assert torch.equal(ours(folder, PIXELS), images)
    assert torch.equal(texts(folder), words)


def gemma_tokenizer() -> GemmaTokenizer:
    """As SigLIP 2's converter makes it: told to lower-case, which its class ignores."""
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokens = [*special, *letters, *byte_tokens, "do", "dog", "▁dog", "Do"]
    return GemmaTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[("d", "o"), ("do", "g"), ("▁", "dog"), ("D", "o")],
        add_bos_token=False,
        add_eos_token=True,
        do_lower_case=True,
        padding_side="right",
        model_input_names=["input_ids"],
    )


def test_texts_of_siglip_2_are_lower_cased_and_padded_to_64(tmp_path):
    tokenizer = gemma_tokenizer()
    text = {**TEXT, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    SiglipModel(SiglipConfig(**{**TOWERS, "text_config": text})).save_pretrained(tmp_path)
    SiglipImageProcessor(**SQUARE, resample=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["do_lower_case"]
    assert config["tokenizer_class"] == "GemmaTokenizer"
    told = ["A Dog, two DOGS", "ein Hund 猫", "", "dog " * 80]
    theirs, words = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    lowered = [text.lower() for text in told]
    batch = words(
        lowered, padding="max_length", max_length=64, truncation=True, return_tensors="pt"
    )
    assert batch["input_ids"].shape == (4, 64)
    assert "attention_mask" not in batch
    with torch.inference_mode():
        expected = theirs.get_text_features(**batch).pooler_output
    built = encoder(tmp_path).build_text(CPU, "fp32")
    assert built.lengths(told) == [64] * 4
    assert built.count_cut(told) == 1
    assert torch.allclose(built.encode(told, 64), expected, atol=1e-6)


def open_clips(folder: Path, form: bool | str = "both", **text: object) -> Path:
    """As open_clip's ``push_to_hf_hub`` fills a folder; without a name its tokenizer is CLIP's."""
    words = make_encoder()[1]
    words.save_pretrained(folder / "words")
    tower = {**CLIP["text_cfg"], "vocab_size": 49408, **text}
    architecture = {"embed_dim": 24, "vision_cfg": CLIP["vision_cfg"], "text_cfg": tower}
    sizes = {key: value for key, value in tower.items() if not key.startswith(("hf_", "token"))}
    model = open_clip.CLIP(**{**architecture, "text_cfg": sizes}).eval()
    preprocessing = {"mean": (0.4, 0.5, 0.6), "resize_mode": "squash", "interpolation": "bilinear"}
    open_clip.model.set_model_preprocess_cfg(
        model, {**vars(open_clip.transform.PreprocessCfg(size=32)), **preprocessing}
    )
    tokenizer = open_clip.tokenizer.HFTokenizer(str(folder / "words"))
    save_for_hf(model, tokenizer, architecture, str(folder), safe_serialization=form)
    shutil.rmtree(folder / "words")
    return folder


@pytest.mark.parametrize("form", [True, False, "both"])
@pytest.mark.parametrize("tokenizer", [{}, {"hf_tokenizer_name": "nobody/words"}])
def test_a_folder_of_open_clip_gives_the_rows_of_open_clip(tmp_path, form, tokenizer):
    folder = open_clips(tmp_path / "local", form, **tokenizer)
    theirs, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    words, told = open_clip.get_tokenizer(f"local-dir:{folder}"), ["a red dog", "Two dogs"]
    photo = photograph(32, 32, seed=2)
    with torch.inference_mode():
        image, text = theirs.encode_image(transform(photo)[None]), theirs.encode_text(words(told))
    for name in (str(folder), f"open_clip:{folder}", f"open_clip:local-dir:{folder}"):
        images = named_encoder(name, "pretrained").build_image(CPU, "fp32")
        pixels = images.preprocessing(torch.from_numpy(np.array(photo)).permute(2, 0, 1))
        assert torch.allclose(images.encode(pixels[None]), image, atol=1e-5)
        texts = named_encoder(name, "pretrained", "text").build_text(CPU, "fp32")
        assert torch.allclose(texts.encode(told, 12), text, atol=1e-6)
        assert images.identity == texts.identity
        assert images.identity.name.startswith("open_clip/local@")
        assert images.identity.source == "pretrained"


def test_a_model_of_open_clip_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    place, commit = tmp_path / "cache/models--someone--clip", "c" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(commit)
    files = open_clips(tmp_path / "files", hf_tokenizer_name="someone/clip")
    here = named_encoder(str(files), "pretrained", "text").build_text(CPU, "fp32")
    shutil.copytree(files, place / "snapshots" / commit)
    for weights in ("pretrained", f"pretrained:{commit}"):
        there = named_encoder("hf-hub:someone/clip", weights, "text").build_text(CPU, "fp32")
        assert torch.equal(there.encode(["a dog"], 12), here.encode(["a dog"], 12))
        assert there.identity.name.startswith("open_clip/someone/clip@")
        assert there.identity.revision == commit
    with pytest.raises(SightlineError, match="someone/other: not a folder of open_clip: no open_c"):
        named_encoder("hf-hub:someone/other", "pretrained").build_image(CPU, "fp32")


def test_a_folder_of_open_clip_is_read_whole_or_refused(tmp_path):
    folder = open_clips(tmp_path / "whole", hf_tokenizer_name="nobody/words")

    def refused(damage: str, *, gone: tuple[str, ...] = (), weights: str = "pretrained") -> None:
        other = shutil.copytree(folder, tmp_path / "other")
        for name in gone:
            (other / name).unlink()
        with pytest.raises(SightlineError, match=damage):
            named_encoder(f"open_clip:{other}", weights).build_text(CPU, "fp32")
        shutil.rmtree(other)

    written = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    refused("no open_clip_model.safetensors or .*give file:PATH", gone=written)
    refused("no open_clip_config.json here; .*transformers:FOLDER", gone=("open_clip_config.json",))
    refused("a folder has no revision 'openai'", weights="pretrained:openai")
    refused("its tokenizer cannot be read", gone=("tokenizer.json",))
    refused("tokenizer 'nobody/words' cannot be", gone=("tokenizer_config.json", "tokenizer.json"))


def test_dinov3_convnext(tmp_path):
    config = DINOv3ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, image_size=32)
    DINOv3ConvNextModel(config).save_pretrained(tmp_path)
    DINOv3ViTImageProcessor(**SQUARE).save_pretrained(tmp_path)
    assert ours(tmp_path, PIXELS).shape == (1, 16)


@pytest.mark.parametrize("teacher", ["simcse", "diffcse"])
def test_teachers_pickled_under_the_names_of_their_papers(tmp_path, teacher):
    plain = bert_folder(tmp_path / "plain")
    folder = shutil.copytree(plain, tmp_path / teacher)
    tensors = load_file(folder / WEIGHTS) | {"embeddings.position_ids": POSITIONS}
    if teacher == "diffcse":  # all modules of its BertForCL, trained or not
        plain_keys = {k: v for k, v in tensors.items() if "pooler" not in k}
        tensors = {f"bert.{k}": v for k, v in plain_keys.items()}
        for other in ("aux_bert", "discriminator.bert", "generator.distilbert"):
            tensors |= {f"{other}.{k}": torch.zeros_like(v) for k, v in plain_keys.items()}
        tensors |= {"lm_head.bias": torch.zeros(11), "electra_head.weight": torch.zeros(2, 32)}
        tensors |= {"generator.vocab_projector.weight": torch.zeros(11, 32)}
        norm = {"mlp.net.1.running_mean": torch.zeros(64), "mlp.net.1.weight": torch.ones(64)}
        tensors |= {"mlp.net.0.weight": torch.zeros(64, 32), **norm}
        tensors |= {"mlp.net.4.num_batches_tracked": torch.tensor(9)}
        edit(folder / "config.json", {"architectures": ["BertForCL"]})
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    (folder / "tokenizer.json").unlink()
    assert torch.equal(texts(folder, pooling="cls"), texts(plain, pooling="cls"))


def qwen_embedding(folder: Path) -> Path:
    """Qwen3-Embedding's layout: of sentence-transformers, without its maximum length."""
    tokens = [*sorted(ByteLevel.alphabet()), "do", "dog", "Ġdog"]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[("d", "o"), ("do", "g"), ("Ġ", "dog")],
        padding_side="left",
        eos_token="<|im_end|>",
        model_max_length=131072,
    )
    end = ("<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[end]
    )
    tokenizer.save_pretrained(folder)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
    settings = Qwen3Config(vocab_size=len(tokenizer), **size, **heads)
    Qwen3Model(settings).save_pretrained(folder, max_shard_size="8KB")
    edit(folder / "config.json", {"architectures": ["Qwen3ForCausalLM"]})
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": f"{i}", "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    others = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
    )
    pooling = {f"pooling_mode_{other}": False for other in others}
    pooling |= {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(pooling | {"include_prompt": True})
    )
    prompts = {"prompts": {"query": "Instruct: dog\nQuery:", "document": ""}}
    prompts |= {"default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


@pytest.mark.parametrize("prefix", ["", "model."])
def test_qwen_3_embedding_with_either_names_of_its_tensors(tmp_path, prefix):
    folder = qwen_embedding(tmp_path)
    index = folder / "model.safetensors.index.json"
    shards = sorted({*json.loads(index.read_text())["weight_map"].values()})
    assert len(shards) > 1
    if prefix:  # as a fine-tuned Qwen3ForCausalLM saves it
        tensors = {k: v for name in shards for k, v in load_file(folder / name).items()}
        save_file({prefix + k: v for k, v in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
        for name in (*shards, index.name):
            (folder / name).unlink()
    told = ["a dog", "Two dogs, 猫", "dog " * 20]
    theirs = SentenceTransformer(str(folder), device="cpu")
    for name in (None, "query"):
        built = encoder(folder, prompt_name=name).build_text(CPU, "fp32")
        rows = built.encode(told, max(built.lengths(told)))
        expected = theirs.encode(told, prompt_name=name or "document", convert_to_tensor=True)
        assert torch.allclose(torch.nn.functional.normalize(rows), expected, atol=1e-5)
