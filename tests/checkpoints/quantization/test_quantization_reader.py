"""Quantisation as checkpoints describe it: methods, formats, and which parts are covered."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.checkpoints.quantization.formats import Quantization
from sparkfleet.errors import FactError

MODEL = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_nextn_predict_layers": 1,
}

LINEAR = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
EVERY = {Part.ATTENTION, Part.LINEAR_ATTENTION, Part.EXPERTS, Part.SHARED_EXPERTS}


def read(section: Mapping[str, object] | None, **changes: object) -> Quantization | None:
    config = {**MODEL, **changes} if section is None else {**MODEL, "quantization_config": section, **changes}
    return checkpoint_from_config(config, id="x").quantization


def covered(quantization: Quantization | None) -> dict[Part, dict[str, float]]:
    """Part → format → share."""
    assert quantization is not None
    found: dict[Part, dict[str, float]] = {}
    for cover in quantization.covers:
        if cover.scheme is not None:
            found.setdefault(cover.part, {})[cover.scheme.format] = cover.share
    return found


METHODS: list[tuple[str, dict[str, object], str, str, float, str]] = [
    # name, section, method, format, stored bits, activations
    ("fp8", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "fp8", 8 + 32 / 16384, "fp8"),
    ("fp8 per tensor", {"quant_method": "fp8"}, "fp8", "fp8", 8, "fp8"),
    ("fbgemm", {"quant_method": "fbgemm_fp8"}, "fp8", "fp8", 8, "fp8"),
    ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", "int4", 4 + 20 / 128, "bf16"),
    ("gptq 8", {"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq", "int8", 8, "bf16"),
    ("awq", {"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", "int4", 4 + 20 / 64, "bf16"),
    ("awq old", {"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq", "int4", 4 + 20 / 64, "bf16"),
    (
        "auto-round",
        {"quant_method": "auto-round", "bits": 4, "group_size": 128},
        "auto-round",
        "int4",
        4 + 20 / 128,
        "bf16",
    ),
    (
        "auto-round in nvfp4",
        {"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp"},
        "auto-round",
        "nvfp4",
        4.5,
        "nvfp4",
    ),
    (
        "auto-round in mxfp8",
        {"quant_method": "auto-round", "bits": 8, "group_size": 32, "data_type": "mx_fp"},
        "auto-round",
        "mxfp8",
        8.25,
        "mxfp8",
    ),
    (
        "auto-round in mxfp4, by a type with the rounding of its scales",
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp_rceil"},
        "auto-round",
        "mxfp4",
        4.25,
        "bf16",
    ),
    (
        "auto-round in fp8",
        {"quant_method": "auto-round", "bits": 8, "group_size": -1, "data_type": "fp", "act_bits": 8},
        "auto-round",
        "fp8",
        8,
        "fp8",
    ),
    (
        "auto-round in fp8 by blocks",
        {
            "quant_method": "auto-round",
            "bits": 8,
            "group_size": [128, 128],
            "data_type": "fp",
            "act_bits": 16,
        },
        "auto-round",
        "fp8",
        8 + 32 / 16384,
        "bf16",
    ),
    ("modelopt", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", "nvfp4", 4.5, "nvfp4"),
    (
        "modelopt as in hf_quant_config.json",
        {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
        "modelopt",
        "nvfp4",
        4.5,
        "nvfp4",
    ),
    ("modelopt unnamed", {"quant_algo": "FP8", "ignore": ["lm_head"]}, "modelopt", "fp8", 8, "fp8"),
    (
        "modelopt w4a16",
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
        "modelopt",
        "nvfp4",
        4.5,
        "bf16",
    ),
    (
        "modelopt mxfp8",
        {"quant_method": "modelopt", "quant_algo": "MXFP8"},
        "modelopt",
        "mxfp8",
        8.25,
        "mxfp8",
    ),
    ("mxfp4", {"quant_method": "mxfp4"}, "mxfp4", "mxfp4", 4.25, "bf16"),
    ("bnb 4", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "nf4", 4.125, "bf16"),
    ("bnb 8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", "int8", 8, "int8"),
    (
        "compressed-tensors nvfp4",
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": LINEAR}},
        "compressed-tensors",
        "nvfp4",
        4.5,
        "bf16",
    ),
    (
        "compressed-tensors mxfp4",
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
        },
        "compressed-tensors",
        "mxfp4",
        4.25,
        "bf16",
    ),
    (
        "compressed-tensors w8a8",
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "int", "symmetric": True},
                    "input_activations": {"num_bits": 8, "type": "int"},
                }
            },
        },
        "compressed-tensors",
        "int8",
        8,
        "int8",
    ),
    (
        "compressed-tensors fp8",
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "block_structure": [128, 128]},
                    "input_activations": {"num_bits": 8, "type": "float"},
                }
            },
        },
        "compressed-tensors",
        "fp8",
        8 + 32 / 16384,
        "fp8",
    ),
]


@pytest.mark.parametrize(
    ("section", "method", "name", "bits", "activations"),
    [case[1:] for case in METHODS],
    ids=[case[0] for case in METHODS],
)
def test_methods(section: dict[str, object], method: str, name: str, bits: float, activations: str) -> None:
    quantization = read(section)
    assert quantization is not None
    assert quantization.method == method
    assert quantization.scheme.format == name
    assert quantization.scheme.stored_bits == bits
    assert quantization.scheme.activations == activations
    assert not quantization.mixed
    assert quantization.scheme_of(Part.EXPERTS) == quantization.scheme


def test_without_a_declaration_nothing_is_quantised() -> None:
    assert read(None) is None
    assert read(None, quantization_config=None) is None


def test_default_coverage_of_each_method() -> None:
    assert covered(read({"quant_method": "fp8"})).keys() == EVERY | {Part.MTP}
    assert covered(read({"quant_method": "modelopt", "quant_algo": "FP8"})).keys() == EVERY
    assert covered(read({"quant_method": "mxfp4"})).keys() == {Part.EXPERTS}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert covered(read({**gptq, "lm_head": True})).keys() == EVERY | {Part.HEAD}


@pytest.mark.parametrize(
    "ignore",
    [
        [f"model.layers.{layer}.linear_attn*" for layer in range(3)],
        ["model.layers.*.linear_attn"],
        ["*.linear_attn.*"],
        ["re:.*linear_attn.*"],
        ["re:^model\\.layers\\.\\d+\\.linear_attn\\..*$"],
        ["re:.*\\.(linear_attn|mamba).*"],
        [
            f"model.layers.{n}.linear_attn.{p}"
            for n in range(3)
            for p in ("in_proj_qkv", "in_proj_z", "out_proj")
        ],
    ],
)
def test_ways_to_leave_out_linear_attention(ignore: list[str]) -> None:
    left = covered(read({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *ignore]}))
    assert left.keys() == EVERY - {Part.LINEAR_ATTENTION}
    assert left[Part.EXPERTS] == {"nvfp4": 1.0}


def test_layers_that_are_left_out_whole() -> None:
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    first = covered(read({**modelopt, "ignore": ["model.layers.0*"]}))
    assert first[Part.EXPERTS] == {"nvfp4": 0.75}
    assert first[Part.LINEAR_ATTENTION]["nvfp4"] == pytest.approx(2 / 3, abs=1e-5)
    assert first[Part.ATTENTION] == {"nvfp4": 1.0}
    # A layer 1 of the MTP head is not a layer of the model.
    assert covered(read({**modelopt, "ignore": ["mtp.layers.0*"]}))[Part.EXPERTS] == {"nvfp4": 1.0}


def test_a_star_after_a_number_stands_for_more_digits_and_after_a_dot_does_not() -> None:
    changes: dict[str, object] = {"num_hidden_layers": 20}
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert (
        covered(read({**modelopt, "ignore": ["model.layers.1.*"]}, **changes))[Part.EXPERTS]["nvfp4"] == 0.95
    )
    assert (
        covered(read({**modelopt, "ignore": ["model.layers.1*"]}, **changes))[Part.EXPERTS]["nvfp4"] == 0.45
    )


def test_the_same_list_in_both_files_counts_once() -> None:
    ignore = ["model.layers.0.mlp.experts*", "model.layers.1.mlp.experts*"]
    config = {
        **MODEL,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore},
    }
    beside = {
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ignore, "kv_cache_quant_algo": "FP8"}
    }
    both = checkpoint_from_config(config, id="x", hf_quant_config=beside).quantization
    assert covered(both)[Part.EXPERTS] == {"nvfp4": 0.5}
    assert both is not None
    assert both.kv_cache == "fp8"


def test_mixed_precision_by_layer() -> None:
    layers = {
        f"model.layers.{n}.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"}
        for n in range(4)
        for e in range(4)
    }
    layers |= {name.replace("up", "down"): value for name, value in layers.items()}
    layers |= {name.replace("up", "gate"): value for name, value in layers.items() if "up" in name}
    layers |= {
        "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "lm_head": {"quant_algo": "W4A16_NVFP4"},
    }
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    quantization = read(section)
    assert covered(quantization) == {
        Part.EXPERTS: {"nvfp4": pytest.approx(1, abs=1e-4)},
        Part.ATTENTION: {"fp8": 0.4},
        Part.HEAD: {"nvfp4": 1.0},
    }
    assert quantization is not None
    assert quantization.mixed
    assert quantization.scheme.format == "nvfp4"
    assert quantization.scheme_of(Part.ATTENTION).format == "fp8"


def test_groups_of_compressed_tensors() -> None:
    fp8 = {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}}
    section = {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": fp8, "b": LINEAR},
        "ignore": ["re:.*mtp.*"],
    }
    shares = covered(read(section))
    assert shares[Part.ATTENTION] == {"fp8": 1.0}
    assert shares[Part.EXPERTS] == {"nvfp4": 1.0}
    assert Part.MTP not in shares


def test_exceptions_of_gptq_and_auto_round() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    dynamic = {"-:.*linear_attn.*": {}, "+:.*self_attn.*": {"bits": 8}}
    shares = covered(read({**gptq, "dynamic": dynamic}))
    assert Part.LINEAR_ATTENTION not in shares
    assert shares[Part.ATTENTION] == {"int8": 1.0}
    extra = {"model.layers.0.mlp.experts": {"bits": 16}, "model.layers.1.mlp.experts": {"bits": 8}}
    rounded = covered(
        read({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": extra})
    )
    assert rounded[Part.EXPERTS] == {"int8": 0.25, "int4": 0.5}
    mxfp8 = {"quant_method": "auto-round", "bits": 8, "group_size": 32, "data_type": "mx_fp"}
    mixed = covered(read({**mxfp8, "extra_config": {".*mlp\\.experts.*": {"bits": 4, "data_type": "mx_fp"}}}))
    assert (mixed[Part.EXPERTS], mixed[Part.ATTENTION]) == ({"mxfp4": 1.0}, {"mxfp8": 1.0})


def test_the_experts_of_deepseek_v4_are_smaller_than_the_rest() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert covered(read(fp8, expert_dtype="fp4"))[Part.EXPERTS] == {"mxfp4": 1.0}
    assert covered(read({**fp8, "moe_quant_algo": "NVFP4"}))[Part.EXPERTS] == {"nvfp4": 1.0}
    with pytest.raises(FactError, match="expert_dtype is 'fp2'"):
        read(fp8, expert_dtype="fp2")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        ({"kv_cache_scheme": None}, None),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_quant_algo": "NVFP4_AFFINE"}, None),
        ({"kv_cache_quant_algo": "FP8_K_NVFP4_V"}, None),
        ({"kv_cache_quant_algo": "MIXED_PRECISION"}, None),
    ],
)
def test_the_kv_cache(said: dict[str, object], expected: str | None) -> None:
    quantization = read({"quant_method": "modelopt", "quant_algo": "FP8", **said})
    assert quantization is not None
    assert quantization.kv_cache == expected


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"quant_method": "gguf"}, "the quantisation method 'gguf' is not supported"),
        ({"quant_method": "exl2"}, "the quantisation method 'exl2' is not supported"),
        ({"quant_method": "exl3"}, "bits is missing"),
        ({"quant_method": "exl3", "bits": 40}, "bits is 40"),
        ({"quant_method": "homeopathic"}, "the quantisation method 'homeopathic' is not supported"),
        ({}, "has no quantisation method"),
        ({"bits": 4}, "has no quantisation method"),
        ({"bits": 4, "group_size": 64}, "no quantisation method, as MLX writes it"),
        ("fp8", "quantization_config is 'fp8'; expected an object"),
        ({"quant_method": 8}, "quant_method is 8"),
        ({"quant_method": "gptq"}, "bits is missing"),
        ({"quant_method": "gptq", "bits": 4}, "group_size is missing"),
        ({"quant_method": "gptq", "bits": 64, "group_size": 128}, "bits is 64; expected between 2 and 8"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 128}, "bits is '4'; expected a whole number"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 1 << 50}, "group_size is"),
        ({"quant_method": "awq", "group_size": 128}, "bits or w_bit is missing"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is 128"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "expected a list of short texts"),
        ({"quant_method": "modelopt"}, "quant_algo is missing"),
        ({"quant_method": "modelopt", "quant_algo": "FP2"}, "unknown quant_algo 'FP2'"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers is missing"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP1"},
            "kv_cache_quant_algo",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}}},
            "weights is missing",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}},
            "num_bits is missing",
        ),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit or load_in_8bit is missing"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["re:.*(?=evil){99}"]},
            "is not supported",
        ),
    ],
)
def test_an_invalid_section_is_an_error(section: object, complaint: str) -> None:
    with pytest.raises(FactError) as caught:
        read(None, quantization_config=section)
    assert complaint in caught.value.what
    assert caught.value.do


def test_a_hostile_pattern_is_read_fast() -> None:
    evil = "re:" + "(a|aa)" * 30 + "*" * 50
    with pytest.raises(FactError, match=r"the module pattern .* is not supported"):
        read({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": [evil]})


SECTION_KEYS = [
    *("quant_method", "bits", "group_size", "weight_block_size", "quant_algo", "ignore", "exclude_modules"),
    *(
        "modules_to_not_convert",
        "config_groups",
        "quantized_layers",
        "dynamic",
        "extra_config",
        "kv_cache_scheme",
    ),
    *("kv_cache_quant_algo", "moe_quant_algo", "load_in_4bit", "weights", "targets", "num_bits", "type"),
]
METHOD_NAMES = ["fp8", "gptq", "awq", "auto-round", "compressed-tensors", "modelopt", "mxfp4", "bitsandbytes"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        ["Linear", "NVFP4", "MIXED_PRECISION", "re:.*mlp.*", "model.layers.0*", "lm_head", "float"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SECTION_KEYS), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    method=st.sampled_from(METHOD_NAMES),
    section=st.dictionaries(st.sampled_from(SECTION_KEYS), JSON, max_size=6),
)
def test_any_section_gives_a_quantisation_or_a_clear_error(method: str, section: dict[str, object]) -> None:
    try:
        found = read({"quant_method": method, **section})
    except FactError as error:
        found = error.what
    assert found is None or str(found).isprintable()


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("nvidia/Some-Model-NVFP4", "NVFP4"),
        ("Qwen/Qwen3-32B-FP8", "FP8"),
        ("x/model-AWQ", "AWQ"),
        ("x/model-GPTQ-Int4", "GPTQ"),
        ("x/model-4bit", "4bit"),
        ("x/model_w4a16", "w4a16"),
    ],
)
def test_a_quantisation_in_the_name_only_is_an_error(name: str, claim: str) -> None:
    with pytest.raises(FactError, match=f"has {claim}"):
        checkpoint_from_config(MODEL, id=name)
    said = checkpoint_from_config(MODEL, id=name, quantization="fp8").quantization
    assert said is not None
    assert said.scheme.format == "fp8"


@pytest.mark.parametrize(
    "name", ["org/Qwen3-8B", "org/fp8lab-model", "org/Model-Mint4ever", "org/Exl-Model", "/models/fp8/mine"]
)
def test_a_name_without_a_quantisation(name: str) -> None:
    assert checkpoint_from_config(MODEL, id=name).quantization is None
