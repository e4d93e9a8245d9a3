from __future__ import annotations

import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames, layer_of

NAMES = [
    # names as they are in published checkpoints
    ("model.embed_tokens.weight", Part.EMBEDDING),
    ("backbone.embeddings.weight", Part.EMBEDDING),
    ("embed.weight", Part.EMBEDDING),
    ("model.language_model.embed_tokens_per_layer.weight", Part.EMBEDDING),
    ("model.language_model.layers.2.ple.ple_embedding.ngram_embedding.weight", Part.EMBEDDING),
    ("lm_head.weight", Part.HEAD),
    ("language_model.lm_head.weight", Part.HEAD),
    ("head.weight", Part.HEAD),
    ("model.layers.0.self_attn.q_proj.weight", Part.ATTENTION),
    ("model.layers.0.self_attn.q_proj.weight_scale_inv", Part.ATTENTION),
    ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", Part.ATTENTION),
    ("model.layers.0.self_attn.indexer.wq_b.weight", Part.ATTENTION),
    ("layers.0.attn.wq_a.weight", Part.ATTENTION),
    ("backbone.layers.0.mixer.q_proj.weight", Part.ATTENTION),
    ("model.layers.3.self_attn.q_conv1d.weight", Part.LINEAR_ATTENTION),
    ("model.language_model.layers.0.linear_attn.in_proj_qkv.weight", Part.LINEAR_ATTENTION),
    ("model.language_model.layers.0.linear_attn.A_log", Part.LINEAR_ATTENTION),
    ("backbone.layers.3.mixer.in_proj.weight", Part.LINEAR_ATTENTION),
    ("model.layers.0.mamba.in_proj.weight", Part.LINEAR_ATTENTION),
    ("model.layers.3.conv.in_proj.weight", Part.LINEAR_ATTENTION),
    ("model.layers.3.conv.conv.weight", Part.LINEAR_ATTENTION),
    ("model.layers.0.mlp.gate_proj.weight", Part.MLP),
    ("model.layers.0.feed_forward.w1.weight", Part.MLP),
    ("backbone.layers.0.mixer.up_proj.weight", Part.MLP),
    ("model.layers.0.block_sparse_moe.gate_proj.weight", Part.MLP),
    ("model.layers.0.mlp.experts.17.down_proj.weight_packed", Part.EXPERTS),
    ("model.layers.0.block_sparse_moe.experts.3.w2.weight", Part.EXPERTS),
    ("model.layers.0.block_sparse_moe.input_linear.weight", Part.EXPERTS),
    ("model.layers.0.mlp.experts.gate_up_proj_blocks", Part.EXPERTS),
    ("model.layers.3.moe.gate_proj.weight", Part.EXPERTS),
    ("backbone.layers.0.mixer.experts.0.up_proj.weight", Part.EXPERTS),
    ("model.layers.0.mlp.shared_experts.up_proj.weight", Part.SHARED_EXPERTS),
    ("model.layers.0.mlp.shared_expert.up_proj.weight", Part.SHARED_EXPERTS),
    ("model.layers.3.share_expert.up_proj.weight", Part.SHARED_EXPERTS),
    ("model.layers.0.mlp.gate.weight", Part.ROUTER),
    ("model.layers.0.mlp.gate.e_score_correction_bias", Part.ROUTER),
    ("model.layers.0.mlp.shared_expert_gate.weight", Part.ROUTER),
    ("model.layers.0.mlp.router.bias", Part.ROUTER),
    ("model.layers.0.feed_forward.expert_bias", Part.ROUTER),
    ("model.layers.0.shared_mlp.input_linear.weight", Part.SHARED_EXPERTS),
    ("layers.0.ffn.gate.tid2eid", Part.ROUTER),
    ("model.layers.0.input_layernorm.weight", Part.NORMS),
    ("model.layers.0.self_attn.q_norm.weight", Part.NORMS),
    ("backbone.norm_f.weight", Part.NORMS),
    ("vpm.encoder.layers.0.self_attn.k_proj.weight", Part.VISION),
    ("model.visual.blocks.0.attn.qkv.weight", Part.VISION),
    ("vision_tower.encoder.layers.0.self_attn.q_proj.weight", Part.VISION),
    ("multi_modal_projector.linear_1.weight", Part.VISION),
    ("model.embed_vision.embedding_projection.weight", Part.VISION),
    ("model.audio_tower.layers.0.self_attn.q_proj.weight", Part.OTHER),
    ("mtp.layers.0.mlp.experts.0.up_proj.weight", Part.MTP),
    ("mtp.fc.weight", Part.MTP),
    ("model.mtp_layers.0.input_proj.weight", Part.MTP),
    ("model.layers.4.eh_proj.weight", Part.MTP),
    ("model.layers.4.embed_tokens.weight", Part.MTP),
    ("model.layers.4.mlp.experts.3.up_proj.weight", Part.MTP),
    ("eagle_module.layers.0.self_attn.q_proj.weight", Part.DRAFT),
    ("midlayer.self_attn.q_proj.weight", Part.ATTENTION),
    ("d2t", Part.OTHER),
    ("dspark.layers.0.mlp.up_proj.weight", Part.DRAFT),
    ("layers.0.hc_attn_fn", Part.OTHER),
    ("something", Part.OTHER),
    ("", Part.OTHER),
    ("...", Part.OTHER),
]


@pytest.mark.parametrize(("name", "part"), NAMES)
def test_parts_by_name(name: str, part: Part) -> None:
    assert PartNames(layers=4, linear={3}).part(name) is part


def test_a_shared_feed_forward_without_experts_is_the_feed_forward() -> None:
    names = PartNames(layers=4, dense=True)
    assert names.part("model.layers.0.shared_mlp.input_linear.weight") is Part.MLP


def test_the_same_name_in_another_layer_may_be_another_part() -> None:
    names = PartNames(layers=4, linear={3})
    parts = [names.part(f"model.layers.{layer}.self_attn.o_proj.weight") for layer in range(5)]
    assert parts == [Part.ATTENTION] * 3 + [Part.LINEAR_ATTENTION, Part.MTP]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.12.mlp", 12),
        ("layers.0.attn", 0),
        ("model.norm", None),
        ("players.3.x", None),
        ("layers.9999999.x", None),
        ("model.layers.3*", None),
    ],
)
def test_the_number_of_a_layer(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer
