"""A tiny SAM 2 for both back ends, with a mapping of weight names between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SIZE, WIDTH = 128, 32

YAML = f"""
model:
  _target_: sam2.modeling.sam2_base.SAM2Base
  image_encoder:
    _target_: sam2.modeling.backbones.image_encoder.ImageEncoder
    scalp: 1
    trunk:
      _target_: sam2.modeling.backbones.hieradet.Hiera
      embed_dim: 16
      num_heads: 1
      stages: [1, 2, 2, 1]
      global_att_blocks: [4]
      window_spec: [8, 4, 4, 2]
      window_pos_embed_bkg_spatial_size: [7, 7]
    neck:
      _target_: sam2.modeling.backbones.image_encoder.FpnNeck
      position_encoding:
        _target_: sam2.modeling.position_encoding.PositionEmbeddingSine
        num_pos_feats: {WIDTH}
        normalize: true
        scale: null
        temperature: 10000
      d_model: {WIDTH}
      backbone_channel_list: [128, 64, 32, 16]
      fpn_top_down_levels: [2, 3]
      fpn_interp_model: nearest
  memory_attention:
    _target_: sam2.modeling.memory_attention.MemoryAttention
    d_model: {WIDTH}
    pos_enc_at_input: true
    num_layers: 1
    layer:
      _target_: sam2.modeling.memory_attention.MemoryAttentionLayer
      activation: relu
      dim_feedforward: 32
      dropout: 0.0
      pos_enc_at_attn: false
      d_model: {WIDTH}
      pos_enc_at_cross_attn_keys: true
      pos_enc_at_cross_attn_queries: false
      self_attention:
        _target_: sam2.modeling.sam.transformer.RoPEAttention
        feat_sizes: [8, 8]
        embedding_dim: {WIDTH}
        num_heads: 1
      cross_attention:
        _target_: sam2.modeling.sam.transformer.RoPEAttention
        feat_sizes: [8, 8]
        rope_k_repeat: true
        embedding_dim: {WIDTH}
        num_heads: 1
        kv_in_dim: 16
  memory_encoder:
    _target_: sam2.modeling.memory_encoder.MemoryEncoder
    out_dim: 16
    in_dim: {WIDTH}
    position_encoding:
      _target_: sam2.modeling.position_encoding.PositionEmbeddingSine
      num_pos_feats: 16
    mask_downsampler:
      _target_: sam2.modeling.memory_encoder.MaskDownSampler
      embed_dim: {WIDTH}
      kernel_size: 3
      stride: 2
      padding: 1
    fuser:
      _target_: sam2.modeling.memory_encoder.Fuser
      num_layers: 1
      layer:
        _target_: sam2.modeling.memory_encoder.CXBlock
        dim: {WIDTH}
  num_maskmem: 7
  image_size: {SIZE}
  use_high_res_features_in_sam: true
  directly_add_no_mem_embed: true
  iou_prediction_use_sigmoid: true
  pred_obj_scores: true
  pred_obj_scores_mlp: true
  use_multimask_token_for_obj_ptr: true
  multimask_output_in_sam: true
"""


def configuration(folder: Path) -> Path:
    """The tiny model as a configuration of the sam2 package."""
    path = folder / "tiny.yaml"
    path.write_text(YAML)
    return path


def hf_config() -> Any:
    """The tiny model as a configuration of transformers."""
    from transformers import Sam2Config

    return Sam2Config(
        vision_config={
            "model_type": "sam2_vision_model",
            "backbone_config": {
                "model_type": "sam2_hiera_det_model",
                "hidden_size": 16,
                "image_size": [SIZE, SIZE],
                "blocks_per_stage": [1, 2, 2, 1],
                "embed_dim_per_stage": [16, 32, 64, 128],
                "num_attention_heads_per_stage": [1, 2, 4, 8],
                "window_size_per_stage": [8, 4, 4, 2],
                "global_attention_blocks": [4],
            },
            "backbone_channel_list": [128, 64, 32, 16],
            "backbone_feature_sizes": [[SIZE // n, SIZE // n] for n in (4, 8, 16)],
            "fpn_hidden_size": WIDTH,
        },
        prompt_encoder_config={"hidden_size": WIDTH, "image_size": SIZE, "patch_size": 16},
        mask_decoder_config={"hidden_size": WIDTH},
    )


_NAMES = [
    (r"^image_encoder\.trunk\.", "vision_encoder.backbone."),
    (r"^image_encoder\.neck\.convs\.(\d+)\.conv\.", r"vision_encoder.neck.convs.\1."),
    (r"^sam_prompt_encoder\.", "prompt_encoder."),
    (r"^sam_mask_decoder\.", "mask_decoder."),
    (r"^no_mem_embed$", "no_memory_embedding"),
    (r"patch_embed\.proj\.", "patch_embed.projection."),
    (r"(blocks\.\d+)\.norm(\d)\.", r"\1.layer_norm\2."),
    (r"(blocks\.\d+\.mlp)\.layers\.0\.", r"\1.proj_in."),
    (r"(blocks\.\d+\.mlp)\.layers\.1\.", r"\1.proj_out."),
    (r"mask_downscaling\.0\.", "mask_embed.conv1."),
    (r"mask_downscaling\.1\.", "mask_embed.layer_norm1."),
    (r"mask_downscaling\.3\.", "mask_embed.conv2."),
    (r"mask_downscaling\.4\.", "mask_embed.layer_norm2."),
    (r"mask_downscaling\.6\.", "mask_embed.conv3."),
    (r"pe_layer\.positional_encoding_gaussian_matrix$", "shared_embedding.positional_embedding"),
    (r"output_upscaling\.0\.", "upscale_conv1."),
    (r"output_upscaling\.1\.", "upscale_layer_norm."),
    (r"output_upscaling\.3\.", "upscale_conv2."),
    (r"(transformer\.layers\.\d+)\.norm(\d)\.", r"\1.layer_norm\2."),
    (r"transformer\.norm_final_attn\.", "transformer.layer_norm_final_attn."),
    (r"(transformer\..*attn\w*)\.out_proj\.", r"\1.o_proj."),
    (r"(transformer\.layers\.\d+\.mlp)\.layers\.0\.", r"\1.proj_in."),
    (r"(transformer\.layers\.\d+\.mlp)\.layers\.1\.", r"\1.proj_out."),
]
"""Names in the sam2 package → names in transformers."""

_MLP = r"(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head)\.layers\.(\d)\."
_PLACES = {"0": "proj_in", "1": "layers.0", "2": "proj_out"}
_ONLY_VIDEO = (
    "memory_",
    "maskmem_",
    "mask_downsample",
    "no_mem_pos_enc",
    "obj_ptr_",
    "no_obj_",
)


def as_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the sam2 package under transformers' names, without the video parts."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(_ONLY_VIDEO):
            continue
        for pattern, new in _NAMES:
            name = re.sub(pattern, new, name)
        renamed[re.sub(_MLP, lambda found: f"{found[1]}.{_PLACES[found[2]]}.", name)] = tensor
    # four embeddings of one row each are one of four rows
    points = [f"prompt_encoder.point_embeddings.{i}.weight" for i in range(4)]
    renamed["prompt_encoder.point_embed.weight"] = torch.cat([renamed.pop(p) for p in points])
    shared = renamed["prompt_encoder.shared_embedding.positional_embedding"]
    renamed["shared_image_embedding.positional_embedding"] = shared
    return renamed
