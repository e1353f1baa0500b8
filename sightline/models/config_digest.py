"""Digest of a model's configuration: what its weights do not reveal, such as heads or activation.

It is taken over the file as it lies there. What transformers makes of the file grows with every
release, and one checkpoint must have one fingerprint under all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sightline.digest import digest

if TYPE_CHECKING:
    from sightline.models.pretrained import Pretrained

WITHOUT_EFFECT = {
    "names and paths; the class comes from the family, and no code of a repository runs": (
        "_name_or_path name_or_path architectures auto_map tokenizer_class processor_class "
        "_commit_hash"
    ),
    "versions": "transformers_version",
    "types on disk; weights are loaded in float32, and `precision` decides": "dtype torch_dtype",
    "labels and tasks of heads, which are not run": (
        "id2label label2id num_labels _num_labels problem_type finetuning_task task_specific_params"
    ),
    "what is returned besides the features": (
        "output_attentions output_hidden_states return_dict use_return_dict use_cache torchscript"
    ),
    "training alone": (
        "gradient_checkpointing initializer_range initializer_factor hidden_dropout_prob "
        "attention_probs_dropout_prob classifier_dropout classifier_dropout_prob dropout "
        "attention_dropout activation_dropout hidden_dropout embedding_dropout pooler_dropout "
        "attn_pdrop embd_pdrop resid_pdrop drop_path_rate layerdrop encoder_layerdrop "
        "decoder_layerdrop"
    ),
}
"""Why a key of config.json changes no row → such keys, at every depth. Any other is digested."""
_IGNORED = frozenset(" ".join(WITHOUT_EFFECT.values()).split())


def config_sha256(source: Pretrained, *, generates: bool = False) -> str:
    """SHA-256 (hex) of a model's config.json, parsed, without the keys `WITHOUT_EFFECT`.

    Args:
        generates: the model writes text, so its generation_config.json counts too.
    """
    content = with_effect(source.json("config.json"))
    if generates:
        content = [content, with_effect(source.json("generation_config.json"))]
    return digest(content)


def with_effect(value: Any) -> Any:
    """A JSON value without the keys `WITHOUT_EFFECT` of its objects."""
    if isinstance(value, dict):
        return {key: with_effect(part) for key, part in value.items() if key not in _IGNORED}
    return [with_effect(part) for part in value] if isinstance(value, list) else value
