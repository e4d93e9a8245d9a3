"""Directories: what a checkpoint's files say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint, Sampling
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config, read_checkpoint
from sparkfleet.checkpoints.io.licenses import License
from sparkfleet.errors import FactError

Weight = tuple[str, str, tuple[int, ...]]
Maker = Callable[..., Path]
LlamaWeights = Callable[..., list[Weight]]
Config = dict[str, object]

HEAD: Weight = ("lm_head.weight", "BF16", (256, 64))


def test_a_dense_model(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    directory = make_checkpoint(weights=[*llama_weights(), HEAD])
    facts = read_checkpoint(directory, id="org/tiny")
    assert facts.id == "org/tiny"
    assert facts.path == directory
    assert facts.weights_known
    assert facts.architectures == ("LlamaForCausalLM",)
    assert facts.parameters_by_part() == {
        Part.ATTENTION: 2 * (64 * 64 * 2 + 32 * 64 * 2),
        Part.MLP: 2 * 3 * 128 * 64,
        Part.NORMS: 5 * 64,
        Part.EMBEDDING: 256 * 64,
        Part.HEAD: 256 * 64,
    }
    assert facts.bytes_on_disk == (directory / "model.safetensors").stat().st_size
    assert facts.active_parameters == facts.total_parameters - 256 * 64
    assert facts.layer_counts() == {LayerKind.FULL: 2}
    assert facts.quantization is None
    assert not facts.vision
    assert facts.mtp_layers == 0
    assert not facts.tie_word_embeddings
    assert facts.unsized == ()


def test_it_is_the_same_after_a_round_trip_through_json(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    facts = read_checkpoint(make_checkpoint(weights=llama_weights()))
    assert Checkpoint.model_validate_json(facts.model_dump_json()) == facts
    assert json.loads(facts.model_dump_json())["layers"][0]["kind"] == "full"


def test_a_missing_head_is_the_embedding(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    facts = read_checkpoint(make_checkpoint(weights=llama_weights()))
    assert facts.tie_word_embeddings
    assert facts.active_parameters == facts.total_parameters


def test_a_stored_head_that_is_tied_is_not_loaded(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    tied = make_checkpoint({**llama, "tie_word_embeddings": True}, [*llama_weights(), HEAD])
    facts = read_checkpoint(tied)
    assert Part.HEAD not in facts.bytes_by_part()
    assert facts.bytes_on_disk > sum(facts.bytes_by_part().values()) + 256 * 64


def test_shards_are_added_up(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    weights = [*llama_weights(), HEAD]
    whole = read_checkpoint(make_checkpoint(weights=weights), id="x")
    shards = {f"model-0000{n + 1}-of-00002.safetensors": weights[n::2] for n in range(2)}
    split = read_checkpoint(make_checkpoint(weights=shards, name="split"), id="x")
    assert split.weights == whole.weights


def test_a_terabyte_in_a_hundred_shards_is_read_by_its_headers(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    weights = [
        (name, dtype, (shape[0], 1 << 12, *shape[1:])) for name, dtype, shape in llama_weights(layers=2500)
    ]
    shards = {f"model-{n:05}.safetensors": weights[n::100] for n in range(100)}
    facts = read_checkpoint(make_checkpoint({**llama, "num_hidden_layers": 2500}, shards))
    assert facts.bytes_on_disk > 750e9
    assert 0 < facts.bytes_on_disk - sum(facts.bytes_by_part().values()) < 100 * 50_000


def test_vision_and_mtp_are_found_in_the_weight_map_and_not_in_the_name(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    config = {**llama, "architectures": ["LlamaForConditionalGeneration"], "num_nextn_predict_layers": 1}
    without = read_checkpoint(make_checkpoint({**config, "vision_config": {"depth": 1}}, llama_weights()))
    assert (without.vision, without.mtp_layers) == (False, 0)
    assert (without.declares_vision, without.declared_mtp_layers) == (True, 1)
    weights = [
        *llama_weights(),
        ("model.visual.blocks.0.attn.qkv.weight", "BF16", (96, 32)),
        ("mtp.fc.weight", "BF16", (64, 128)),
        ("mtp.layers.0.self_attn.q_proj.weight", "BF16", (64, 64)),
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", "BF16", (64, 64)),
    ]
    there = read_checkpoint(make_checkpoint(llama, weights, name="there"))
    assert (there.vision, there.mtp_layers) == (True, 1)
    assert there.parameters_by_part()[Part.VISION] == 96 * 32
    assert there.parameters_by_part()[Part.MTP] == 64 * 128 + 2 * 64 * 64
    assert there.total_parameters == without.total_parameters + 96 * 32
    assert there.active_parameters == without.active_parameters


def test_layers_after_the_last_are_the_mtp_head_of_deepseek_and_glm(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    weights = llama_weights(layers=4)
    facts = read_checkpoint(make_checkpoint({**llama, "num_nextn_predict_layers": 2}, weights))
    assert facts.mtp_layers == 2
    assert facts.parameters_by_part()[Part.MTP] == 2 * (12288 + 24576 + 128)
    joins = [(f"model.layers.{layer}.eh_proj.weight", "BF16", (64, 128)) for layer in (2, 3)]
    assert read_checkpoint(make_checkpoint(llama, [*weights, *joins], name="unsaid")).mtp_layers == 2


def test_one_mtp_layer_in_two_numbered_blocks_is_one(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    weights = [*llama_weights(), *((f"mtp.layers.{n}.mixer.q_proj.weight", "BF16", (4, 4)) for n in range(2))]
    facts = read_checkpoint(make_checkpoint({**llama, "num_nextn_predict_layers": 1}, weights))
    assert facts.mtp_layers == 1


def test_draft_weights_are_not_the_models_own(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    weights = [*llama_weights(), ("dspark.layers.0.mlp.up_proj.weight", "BF16", (64, 64))]
    facts = read_checkpoint(make_checkpoint(weights=weights))
    assert facts.bytes_by_part()[Part.DRAFT] == 2 * 64 * 64
    assert (
        facts.total_parameters
        == read_checkpoint(make_checkpoint(weights=llama_weights(), name="plain")).total_parameters
    )


def test_a_draft_head_is_a_checkpoint_of_its_own(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """EAGLE-3 as SpecForge and NVIDIA publish it: one layer without a number, no embedding, a head of its own."""
    config = {
        **llama,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 32,
    }
    layer = [w for w in llama_weights(layers=1) if "layers.0" in w[0]]
    weights = [(name.replace("model.layers.0", "midlayer"), dtype, shape) for name, dtype, shape in layer]
    weights += [("fc.weight", "BF16", (64, 192)), ("lm_head.weight", "BF16", (32, 64)), ("d2t", "I64", (32,))]
    facts = read_checkpoint(make_checkpoint(config, weights))
    assert facts.parameters_by_part()[Part.ATTENTION] == 12_288
    assert facts.layer_counts() == {LayerKind.FULL: 1}
    assert sum(facts.bytes_by_part().values()) == 2 * (36_992 + 64 * 192 + 32 * 64) + 8 * 32


MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 16,
}


def moe_weights(weights: Iterable[Weight]) -> list[Weight]:
    """Experts in place of the feed-forward."""
    found = [weight for weight in weights if ".mlp." not in weight[0]]
    for layer in range(2):
        mlp = f"model.layers.{layer}.mlp."
        found += [
            (mlp + "gate.weight", "BF16", (4, 64)),
            (mlp + "shared_expert_gate.weight", "BF16", (1, 64)),
        ]
        found += [
            (mlp + f"shared_expert.{name}.weight", "BF16", (16, 64)) for name in ("gate_proj", "up_proj")
        ]
        for expert in range(4):
            names = ("gate_proj", "up_proj", "down_proj")
            found += [(mlp + f"experts.{expert}.{name}.weight", "BF16", (32, 64)) for name in names]
    return found


def test_experts(make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights) -> None:
    facts = read_checkpoint(make_checkpoint({**llama, **MOE}, moe_weights(llama_weights())))
    parts = facts.parameters_by_part()
    assert parts[Part.EXPERTS] == 2 * 4 * 3 * 32 * 64
    assert parts[Part.SHARED_EXPERTS] == 2 * 2 * 16 * 64
    assert parts[Part.ROUTER] == 2 * 5 * 64
    assert (facts.experts, facts.experts_per_token, facts.shared_experts) == (4, 1, 1)
    assert facts.total_parameters - facts.active_parameters == parts[Part.EXPERTS] * 3 // 4
    assert facts.active_bytes == 2 * facts.active_parameters


def test_experts_that_cannot_be_found_by_name_are_an_error(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    with pytest.raises(FactError, match="no weights for its 4 experts"):
        read_checkpoint(make_checkpoint({**llama, **MOE}, llama_weights()))


def quantised(*, packed: Callable[[str, int, int], list[Weight]], weights: Iterable[Weight]) -> list[Weight]:
    """The projections of `weights` in another form."""
    found: list[Weight] = []
    for name, dtype, shape in weights:
        found += packed(name.removesuffix("weight"), *shape) if "_proj" in name else [(name, dtype, shape)]
    return found


PACKINGS: dict[str, tuple[Config, Callable[[str, int, int], list[Weight]], str, float]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        lambda name, out, inner: [
            (name + "qweight", "I32", (inner // 8, out)),
            (name + "qzeros", "I32", (inner // 32, out // 8)),
            (name + "scales", "F16", (inner // 32, out)),
            (name + "g_idx", "I32", (inner,)),
        ],
        "int4",
        4,
    ),
    "gptq 8 bit": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1},
        lambda name, out, inner: [
            (name + "qweight", "I32", (inner // 4, out)),
            (name + "scales", "F16", (1, out)),
        ],
        "int8",
        8,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        lambda name, out, inner: [
            (name + "qweight", "I32", (inner, out // 8)),
            (name + "qzeros", "I32", (inner // 64, out // 8)),
            (name + "scales", "F16", (inner // 64, out)),
        ],
        "int4",
        4,
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 64, "packing_format": "auto_round:auto_gptq"},
        lambda name, out, inner: [(name + "qweight", "I32", (inner // 8, out))],
        "int4",
        4,
    ),
    "fp8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        lambda name, out, inner: [
            (name + "weight", "F8_E4M3", (out, inner)),
            (name + "weight_scale_inv", "F32", (out // 32, inner // 32)),
        ],
        "fp8",
        8,
    ),
    "nvfp4 by modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        lambda name, out, inner: [
            (name + "weight", "U8", (out, inner // 2)),
            (name + "weight_scale", "F8_E4M3", (out, inner // 16)),
            (name + "weight_scale_2", "F32", ()),
            (name + "input_scale", "F32", ()),
        ],
        "nvfp4",
        4,
    ),
    "nvfp4 by compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                }
            },
            "ignore": ["lm_head"],
        },
        lambda name, out, inner: [
            (name + "weight_packed", "U8", (out, inner // 2)),
            (name + "weight_scale", "F8_E4M3", (out, inner // 16)),
            (name + "weight_global_scale", "F32", (1,)),
            (name + "input_global_scale", "F32", (1,)),
        ],
        "nvfp4",
        4,
    ),
    "int4 by compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "group_size": 32},
                }
            },
        },
        lambda name, out, inner: [
            (name + "weight_packed", "I32", (out, inner // 8)),
            (name + "weight_scale", "BF16", (out, inner // 32)),
            (name + "weight_shape", "I64", (2,)),
        ],
        "int4",
        4,
    ),
    "int8 by compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}},
        },
        lambda name, out, inner: [
            (name + "weight", "I8", (out, inner)),
            (name + "weight_scale", "BF16", (out, 1)),
        ],
        "int8",
        8,
    ),
    "exl3": (
        {"quant_method": "exl3", "version": "0.0.43", "bits": 3.0, "head_bits": 6, "codebook": "mcg"},
        lambda name, out, inner: [
            (name + "trellis", "I16", (inner // 16, out // 16, 48)),
            (name + "suh", "F16", (inner,)),
            (name + "svh", "F16", (out,)),
            (name + "mcg", "I32", ()),
        ],
        "exl3",
        3,
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda name, out, inner: [
            (name + "weight", "U8", (out * inner // 2, 1)),
            (name + "weight.absmax", "U8", (out * inner // 64,)),
            (name + "weight.quant_map", "F32", (16,)),
            (name + "weight.nested_absmax", "F32", (1,)),
            (name + "weight.quant_state.bitsandbytes__nf4", "U8", (80,)),
        ],
        "nf4",
        4,
    ),
}


@pytest.mark.parametrize("case", PACKINGS)
def test_packed_weights_are_counted_as_the_parameters_they_hold(
    case: str, make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    section, packed, name, bits = PACKINGS[case]
    plain = read_checkpoint(make_checkpoint(weights=llama_weights()))
    directory = make_checkpoint(
        {**llama, "quantization_config": section},
        quantised(packed=packed, weights=llama_weights()),
        name="packed",
    )
    facts = read_checkpoint(directory)
    assert facts.total_parameters == plain.total_parameters
    assert facts.parameters_by_part() == plain.parameters_by_part()
    formats = {portion.format: portion for portion in facts.weights if portion.part is Part.MLP}
    assert formats[name].bytes * 8 == formats[name].parameters * bits
    assert all(portion.parameters == 0 for portion in facts.weights if portion.format == "scale")
    assert sum(facts.bytes_by_part().values()) < 0.7 * sum(plain.bytes_by_part().values())


def test_the_experts_of_gpt_oss(make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights) -> None:
    config = {**llama, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
    weights = [weight for weight in llama_weights() if ".mlp." not in weight[0]]
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts."
        weights += [
            (experts + "gate_up_proj_blocks", "U8", (4, 256, 2, 16)),
            (experts + "gate_up_proj_scales", "U8", (4, 256, 2)),
            (experts + "gate_up_proj_bias", "BF16", (4, 256)),
            (f"model.layers.{layer}.mlp.router.weight", "BF16", (4, 64)),
        ]
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    facts = read_checkpoint(make_checkpoint({**config, "quantization_config": section}, weights))
    assert facts.parameters_by_part()[Part.EXPERTS] == 2 * (4 * 256 * 64 + 4 * 256)
    assert facts.quantization is not None
    assert facts.quantization.scheme.format == "mxfp4"


def test_two_fp4_values_in_a_signed_byte_are_deepseeks_experts(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    weights = [
        (name, "I8", (32, 32)) if ".experts." in name else (name, dtype, shape)
        for name, dtype, shape in moe_weights(llama_weights())
    ]
    section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {**llama, **MOE, "quantization_config": section}
    assert read_checkpoint(make_checkpoint({**config, "expert_dtype": "fp4"}, weights)).parameters_by_part()[
        Part.EXPERTS
    ] == (2 * 4 * 3 * 32 * 64)
    plain = read_checkpoint(make_checkpoint(config, weights, name="int8"))
    assert plain.parameters_by_part()[Part.EXPERTS] == 2 * 4 * 3 * 32 * 32


def test_packed_weights_without_declared_bits_are_an_error(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    weights = quantised(packed=PACKINGS["nvfp4 by modelopt"][1], weights=llama_weights())
    with pytest.raises(FactError, match=r"q_proj.weight' is packed, but the bits per weight"):
        read_checkpoint(make_checkpoint(weights=weights))


@pytest.mark.parametrize(("name", "method"), [("quantize_config.json", "gptq"), ("quant_config.json", "awq")])
def test_bits_in_a_file_that_engines_do_not_read_are_named(
    make_checkpoint: Maker, llama_weights: LlamaWeights, name: str, method: str
) -> None:
    directory = make_checkpoint(weights=quantised(packed=PACKINGS["gptq"][1], weights=llama_weights()))
    (directory / name).write_text('{"bits": 4, "group_size": 128}')
    with pytest.raises(FactError) as caught:
        read_checkpoint(directory)
    assert f"Copy what {name} has into config.json" in str(caught.value.do)
    assert f'"quant_method": "{method}"' in str(caught.value.do)


def test_weights_of_32_bits_are_loaded_in_16(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    half = read_checkpoint(make_checkpoint(llama, llama_weights()))
    wide = [(name, "F32", shape) for name, _, shape in llama_weights()]
    full = read_checkpoint(make_checkpoint({**llama, "torch_dtype": "float32"}, wide, name="wide"))
    assert sum(full.bytes_by_part().values()) == 2 * half.loaded_bytes
    assert full.loaded_bytes == half.loaded_bytes
    assert full.active_bytes == half.active_bytes


@pytest.mark.parametrize(
    ("declared", "dtype"), [("auto", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("half", "float16")]
)
def test_other_spellings_of_a_precision(llama: Config, declared: str, dtype: str) -> None:
    assert checkpoint_from_config({**llama, "torch_dtype": declared}, id="o/m").dtype == dtype


def test_an_unknown_architecture_without_the_keys_of_attention_is_named(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    """The missing key alone would be taken for a damaged file."""
    config = {key: value for key, value in llama.items() if key != "num_attention_heads"}
    with pytest.raises(FactError, match="the architecture gpt2 is not known") as caught:
        read_checkpoint(make_checkpoint({**config, "model_type": "gpt2"}, llama_weights()))
    assert "num_attention_heads is missing" in str(caught.value.means)
    assert "`engine: custom`" in str(caught.value.do)


def test_modelopt_quantisation_in_a_separate_file(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    weights = quantised(packed=PACKINGS["nvfp4 by modelopt"][1], weights=llama_weights())
    directory = make_checkpoint(weights=weights)
    beside = {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    (directory / "hf_quant_config.json").write_text(json.dumps(beside))
    facts = read_checkpoint(directory)
    assert facts.quantization is not None
    assert facts.quantization.method == "modelopt"
    assert facts.quantization.kv_cache == "fp8"
    assert facts.kv_bytes_per_token() == facts.kv_bytes_per_token(dtype="bf16") / 2


def test_a_config_without_weights_is_read_as_such(make_checkpoint: Maker, llama: Config) -> None:
    directory = make_checkpoint(llama)
    facts = read_checkpoint(directory, id="org/tiny")
    assert not facts.weights_known
    assert facts.path is None
    assert (facts.vision, facts.mtp_layers) == (None, None)
    assert facts == checkpoint_from_config(llama, id="org/tiny")


def test_an_estimate_agrees_with_the_weights(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    facts = read_checkpoint(make_checkpoint(weights=[*llama_weights(), HEAD]))
    estimate = checkpoint_from_config(llama, id="x")
    assert estimate.parameters_by_part() == {**facts.parameters_by_part(), Part.NORMS: 4 * 64}
    assert estimate.layers == facts.layers


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"top_k": 50.0}', Sampling(top_k=50)),
        ('{"temperature": "high", "top_p": true, "top_k": 1.5}', Sampling()),
    ],
)
def test_sampling_defaults_stop_no_plan(
    make_checkpoint: Maker, llama: Config, given: str, expected: Sampling
) -> None:
    directory = make_checkpoint(llama)
    (directory / "generation_config.json").write_text(given)
    assert read_checkpoint(directory).sampling == expected


def test_license_sampling_remote_code_and_hub_name(make_checkpoint: Maker, llama: Config) -> None:
    config = {**llama, "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}
    directory = make_checkpoint(config, name="models--Org--Some-Model/snapshots/0123456789abcdef")
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    (directory / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.95, "top_k": 20}')
    facts = read_checkpoint(directory)
    assert (facts.id, facts.revision) == ("Org/Some-Model", "0123456789abcdef")
    assert facts.license == License(id="apache-2.0", kind="open-source", source="README.md")
    assert facts.sampling == Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert facts.needs_remote_code


def test_an_unknown_architecture_is_accepted_if_its_weights_are_plain_attention(
    make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    new = {**llama, "model_type": "brand_new"}
    facts = read_checkpoint(make_checkpoint(new, llama_weights()))
    assert facts.model_type == "brand_new"
    assert facts.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2
    with pytest.raises(FactError, match="layer 0 does not have 4 KV heads of 16"):
        read_checkpoint(
            make_checkpoint({**new, "num_key_value_heads": 4}, llama_weights(), name="contradiction")
        )
    strange = [*llama_weights(), ("model.layers.1.mamba.A_log", "F32", (8,))]
    with pytest.raises(FactError, match=r"has the tensor 'model.layers.1.mamba.A_log'"):
        read_checkpoint(make_checkpoint(new, strange, name="strange"))
    with pytest.raises(FactError, match="the architecture brand_new is not known"):
        checkpoint_from_config(new, id="org/new")


@pytest.mark.parametrize("case", ["gptq", "awq", "nvfp4 by modelopt"])
def test_an_unknown_architecture_may_be_quantised(
    case: str, make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights
) -> None:
    section, packed, _, _ = PACKINGS[case]
    weights = quantised(packed=packed, weights=llama_weights())
    config = {**llama, "model_type": "brand_new", "quantization_config": section}
    assert read_checkpoint(make_checkpoint(config, weights)).layer_counts() == {LayerKind.FULL: 2}


def test_requantized_is_the_same_model_in_another_size(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    facts = read_checkpoint(make_checkpoint(weights=[*llama_weights(), HEAD]), id="org/tiny")
    smaller = facts.requantized("nvfp4")
    assert smaller.parameters_by_part() == facts.parameters_by_part()
    assert smaller.bytes_by_part()[Part.MLP] == facts.parameters_by_part()[Part.MLP] * 4.5 / 8
    assert smaller.bytes_by_part()[Part.HEAD] == facts.bytes_by_part()[Part.HEAD]
    assert not smaller.weights_known
    assert smaller.requantized("bf16").bytes_by_part() == facts.bytes_by_part()
    with pytest.raises(FactError, match="Unknown quantisation 'q4_k_m'"):
        facts.requantized("q4_k_m")
