from __future__ import annotations

from typing import Any

import pytest

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.checkpoints.quantization.named_quantization import NAMED
from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.knowledge.rules.rules import load_rules
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.rules.judgement import judge
from sparkfleet.planner.rules.rule_facts import (
    checkpoint_quant,
    checkpoint_situation,
    image_situation,
    situation_of,
)
from sparkfleet.planner.types.plan import Candidate, GroupShape

QWEN_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151936,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def candidate(**changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "model": "Qwen/Qwen3.6-27B-FP8",
        "shape": GroupShape(nodes=("a", "b"), tp=2, ep=2),
        "engine": "vllm",
        "engine_version": "0.26.0",
        "context": 32768,
        "concurrency": 4,
    }
    return Candidate(**(fields | changes))


def checkpoint(quantization: str | None = None) -> Checkpoint:
    return checkpoint_from_config(QWEN_NEXT, id="Qwen/Qwen3-Next", quantization=quantization)


def test_what_a_candidate_says() -> None:
    found = situation_of(candidate(speculation=Speculation(method="mtp", tokens=3)))
    assert (found.engine, found.engine_version, found.model) == ("vllm", "0.26.0", "Qwen/Qwen3.6-27B-FP8")
    assert (found.tp, found.pp, found.ep, found.nodes) == (2.0, 1.0, 2.0, 2.0)
    assert (found.speculation, found.speculation_tokens) == ("mtp", 3.0)
    assert (found.context, found.concurrency) == (32768.0, 4.0)
    assert (found.memory_fraction, found.memory_fraction_set, found.kv_pinned) == (None, False, False)
    # A process has no image, and that is known.
    assert (found.image, found.image_digest) == ("", "")


def test_what_no_flag_sets_is_left_to_the_engine() -> None:
    found = situation_of(candidate())
    assert {found.attention_backend, found.moe_backend, found.kv_dtype, found.load_format} == {"auto"}
    assert (found.executor, found.cuda_graphs) == ("mp", True)


@pytest.mark.parametrize(
    ("engine", "args", "facts"),
    [
        ("vllm", ("--moe-backend", "marlin"), {"moe_backend": "marlin"}),
        ("vllm", ("--enforce-eager",), {"cuda_graphs": False}),
        ("vllm", ("--max-num-batched-tokens=8192",), {"batch_tokens": 8192.0}),
        ("vllm", ("--max-num-batched-tokens=lots",), {"batch_tokens": None}),
        (
            "vllm",
            ("--gpu-memory-utilization", "0.87"),
            {"memory_fraction": 0.87, "memory_fraction_set": True},
        ),
        ("sglang", ("--mem-fraction-static=0.82",), {"memory_fraction": 0.82, "memory_fraction_set": True}),
        ("sglang", ("--disable-cuda-graph",), {"cuda_graphs": False, "executor": None}),
        ("vllm", ("--kv-cache-memory-bytes", "8G"), {"kv_pinned": True}),
        ("vllm", ("--enforce-eager",), {"kv_pinned": False}),
        ("sglang", ("--max-total-tokens=65536",), {"kv_pinned": True}),
        ("trtllm", ("--anything",), {"cuda_graphs": None, "moe_backend": None}),
    ],
)
def test_flags_become_facts(engine: str, args: tuple[str, ...], facts: dict[str, object]) -> None:
    found = situation_of(candidate(engine=engine, engine_args=args))
    assert {name: getattr(found, name) for name in facts} == facts


def test_a_candidate_counts_more_than_what_was_known() -> None:
    known = RuleContext(driver="580.142", engine_version="0.19.0", context=1.0)
    found = situation_of(candidate(), known)
    assert (found.driver, found.engine_version, found.context) == ("580.142", "0.26.0", 32768.0)


def test_a_candidate_that_does_not_know_leaves_what_was_known() -> None:
    known = RuleContext(memory_fraction=0.7)
    assert situation_of(candidate(), known).memory_fraction == 0.7


def test_a_pinned_image_keeps_tag_and_digest() -> None:
    found = situation_of(candidate(runtime="container", image="x/y:1@sha256:ab"))
    assert (found.image, found.image_digest) == ("x/y:1", "sha256:ab")


def test_what_a_checkpoint_is() -> None:
    found = checkpoint_situation(checkpoint(), GroupShape(nodes=("a", "b"), tp=2))
    assert found.features is not None
    assert {"moe", "gdn", "hybrid"} <= set(found.features)
    assert not {"mla", "sliding", "mamba", "vision"} & set(found.features)
    assert (found.model, found.model_type, found.quant) == ("Qwen/Qwen3-Next", "qwen3_next", "bf16")
    assert found.weight_gb == pytest.approx(2 * (found.weight_gb_per_node or 0))


def test_weights_of_32_bits_are_those_of_16() -> None:
    wide = checkpoint_from_config({**QWEN_NEXT, "torch_dtype": "float32"}, id="o/m")
    found = checkpoint_situation(wide, GroupShape(nodes=("a",)))
    assert (found.quant, found.architecture) == ("bf16", "Qwen3NextForCausalLM")
    half = checkpoint_situation(checkpoint(), GroupShape(nodes=("a",))).weight_gb
    assert found.weight_gb == pytest.approx(half, rel=0.001)  # routers may stay as they are


@pytest.mark.parametrize(
    "quantization",
    ["fp8", "nvfp4", "mxfp4", "awq", "gptq-int4", "gptq-int8", "int4-autoround", "nf4", "bnb-int8"],
)
def test_a_format_is_called_as_in_the_rules(quantization: str) -> None:
    assert checkpoint_situation(checkpoint(quantization), GroupShape(nodes=("a",))).quant == quantization


@pytest.mark.parametrize(("tp", "divides"), [(1, True), (2, True), (4, True), (3, False), (5, False)])
def test_heads_are_shared_out_or_not(tp: int, divides: bool) -> None:
    shape = GroupShape(nodes=tuple(f"n{at}" for at in range(tp)), tp=tp)
    assert checkpoint_situation(checkpoint(), shape).tp_divides_heads is divides


def in_blocks(section: dict[str, object] | None = None, **changes: object) -> Checkpoint:
    declared = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {**QWEN_NEXT, "quantization_config": section or declared, **changes}
    return checkpoint_from_config(config, id="Qwen/Qwen3-Next")


@pytest.mark.parametrize(
    ("tp", "ep", "experts", "rest"),
    [(1, 1, 0, True), (4, 1, 0, True), (8, 1, 64, False), (16, 1, 32, False), (8, 8, 0, False)],
)
def test_fp8_blocks_are_split_or_not(tp: int, ep: int, experts: int, rest: bool) -> None:
    """512 columns are 4 blocks; with EP the experts of a rank are whole, its part of the shared one is not."""
    shape = GroupShape(nodes=tuple(f"n{at}" for at in range(tp)), tp=tp, ep=ep)
    found = checkpoint_situation(in_blocks(), shape)
    assert (found.expert_block, found.tp_divides_blocks) == (experts, rest)


@pytest.mark.parametrize(
    ("block", "tp", "experts", "rest"),
    [([64, 64], 8, 0, True), ([32, 32], 8, 0, True), ([1, 128], 4, 0, True), ([1, 128], 8, 1, False)],
)
def test_other_blocks_than_those_of_128(block: list[int], tp: int, experts: int, rest: bool) -> None:
    found = checkpoint_situation(
        in_blocks({"quant_method": "fp8", "weight_block_size": block}),
        GroupShape(nodes=tuple(f"n{at}" for at in range(tp)), tp=tp),
    )
    assert (found.expert_block, found.tp_divides_blocks) == (experts, rest)


def test_blocks_across_the_hidden_size_are_not_split_by_tp() -> None:
    found = checkpoint_situation(in_blocks(hidden_size=2880), GroupShape(nodes=("a", "b"), tp=2))
    assert found.expert_block == 0


COMPRESSED: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
        }
    },
}
"""As of RedHatAI/Qwen3-30B-A3B-FP8-block."""


@pytest.mark.parametrize(
    ("section", "tp", "version", "fires"),
    [
        (None, 4, "0.28.0", False),
        (None, 8, "0.28.0", True),
        (None, 8, "0.32.0", False),  # makes the blocks smaller, those of compressed-tensors not
        (COMPRESSED, 4, "0.32.0", False),
        (COMPRESSED, 8, "0.32.0", True),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, 8, "0.28.0", False),
    ],
)
def test_a_tp_is_refused_that_splits_blocks_of_experts(
    section: dict[str, object] | None, tp: int, version: str, fires: bool
) -> None:
    """Also of a publisher most of whose checkpoints have no blocks, if this one declares them."""
    shape = GroupShape(nodes=tuple("abcdefgh"[:tp]), tp=tp)
    stored = in_blocks(section).model_copy(update={"id": "RedHatAI/Qwen3-Next"})
    one = candidate(model=stored.id, shape=shape, engine_version=version)
    found = judge(situation_of(one, checkpoint_situation(stored, shape)))
    certain = {match.rule.id for match in found if match.certain}
    assert ("fp8-expert-blocks" in certain) is fires


def test_what_has_no_blocks_is_not_split_in_them() -> None:
    shape = GroupShape(nodes=tuple("abcdefgh"), tp=8)
    for other in (
        checkpoint(),
        in_blocks({"quant_method": "fp8"}),
        in_blocks(
            {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": ["mlp.experts", "shared_expert"],
            }
        ),
    ):
        found = checkpoint_situation(other, shape)
        assert (found.expert_block, found.tp_divides_blocks) == (0, True), other.quantization


def test_blocks_of_a_name_are_not_known() -> None:
    known = checkpoint_situation(checkpoint("fp8"), GroupShape(nodes=("a", "b"), tp=2))
    assert (known.expert_block, known.tp_divides_blocks) == (0, True)  # whole, if there are any
    split = checkpoint_situation(checkpoint("fp8"), GroupShape(nodes=tuple("abcdefgh"), tp=8))
    assert (split.expert_block, split.tp_divides_blocks) == (None, None)


def test_a_list_of_parts_that_cannot_be_read_leaves_it_open() -> None:
    read = in_blocks()
    assert read.quantization is not None
    unread = read.quantization.model_copy(update={"unread": ("re:(",)})
    found = checkpoint_situation(
        read.model_copy(update={"quantization": unread}), GroupShape(nodes=tuple("abcdefgh"), tp=8)
    )
    assert (found.expert_block, found.tp_divides_blocks) == (None, None)


def test_widths_that_are_not_known_leave_it_open() -> None:
    unknown = in_blocks().model_copy(update={"widths": None})
    found = checkpoint_situation(unknown, GroupShape(nodes=("a", "b"), tp=2))
    assert (found.expert_block, found.tp_divides_blocks) == (None, None)


def in_groups(method: str = "awq", **changes: object) -> Checkpoint:
    """Groups of 128; 512 columns of an expert, 5,120 of what is dense."""
    packed = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    section = {"quant_method": method, "bits": 4, "group_size": 128}
    if method == "compressed-tensors":
        section = {
            "quant_method": method,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": packed}},
        }
    return checkpoint_from_config({**QWEN_NEXT, "quantization_config": section, **changes}, id="o/m")


@pytest.mark.parametrize(
    ("tp", "ep", "experts", "rest"),
    [(1, 1, True, True), (4, 1, True, True), (8, 1, False, False), (8, 8, True, False)],
)
def test_int4_groups_are_split_or_not(tp: int, ep: int, experts: bool, rest: bool) -> None:
    found = checkpoint_situation(in_groups(), GroupShape(nodes=tuple("abcdefgh"[:tp]), tp=tp, ep=ep))
    assert (found.tp_divides_expert_groups, found.tp_divides_groups) == (experts, rest)


def test_groups_along_the_output_of_attention_count() -> None:
    """As of Qwen2.5-0.5B: 14 heads of 64 are 896 columns, 448 of them on each of two ranks."""
    shape = GroupShape(nodes=("a", "b"), tp=2)
    small = in_groups(num_attention_heads=14, head_dim=64)
    assert checkpoint_situation(small, shape).tp_divides_groups is False


def test_groups_of_a_name_are_not_known() -> None:
    """Qwen filled the 29,568 columns of its 72B up before it quantised them."""
    split = checkpoint_situation(checkpoint("awq"), GroupShape(nodes=tuple("abcdefgh"), tp=8))
    assert (split.tp_divides_expert_groups, split.tp_divides_groups) == (None, None)
    other = checkpoint_situation(checkpoint("fp8"), GroupShape(nodes=tuple("abcdefgh"), tp=8))
    assert (other.tp_divides_expert_groups, other.tp_divides_groups) == (True, True)
    unknown = in_groups().model_copy(update={"widths": None})
    found = checkpoint_situation(unknown, GroupShape(nodes=("a", "b"), tp=2))
    assert (found.tp_divides_expert_groups, found.tp_divides_groups) == (None, None)


@pytest.mark.parametrize(
    ("method", "tp", "fires"),
    [
        ("awq", 8, {"int-groups-split"}),
        ("compressed-tensors", 8, {"int-groups-split", "int-expert-groups-split"}),
        ("awq", 4, set()),
    ],
)
def test_a_tp_is_refused_that_splits_groups(method: str, tp: int, fires: set[str]) -> None:
    shape = GroupShape(nodes=tuple("abcdefgh"[:tp]), tp=tp)
    stored = in_groups(method)
    one = candidate(model=stored.id, shape=shape, engine_version="0.31.0")
    found = judge(situation_of(one, checkpoint_situation(stored, shape)))
    assert {match.rule.id for match in found if match.certain and match.rule.id.startswith("int-")} == fires


@pytest.mark.parametrize(
    ("changes", "tp", "divides"),
    [
        ({}, 2, True),
        ({}, 3, False),  # 5,120 columns
        ({"intermediate_size": 5184, "moe_intermediate_size": 576, "shared_expert_intermediate_size": 576}, 3, False),
        (
            {"intermediate_size": 5184, "moe_intermediate_size": 576, "shared_expert_intermediate_size": 576,
             "vocab_size": 151_872},
            3, True,
        ),
        ({"vocab_size": 151_937}, 2, True),  # filled up to 152,000
    ],
)  # fmt: skip
def test_columns_and_the_vocabulary_are_shared_out_or_not(
    changes: dict[str, object], tp: int, divides: bool
) -> None:
    shape = GroupShape(nodes=tuple("abc"[:tp]), tp=tp)
    found = checkpoint_situation(checkpoint_from_config({**QWEN_NEXT, **changes}, id="o/m"), shape)
    assert found.tp_divides_widths is divides


def test_what_an_image_holds() -> None:
    found = image_situation("vllm/vllm-openai:v0.27.1")
    assert (found.engine_version, found.flashinfer_version, found.nccl_version) == (
        "0.27.1",
        "0.6.16.post3",
        None,
    )
    assert image_situation("").image == ""
    assert image_situation("a/b:c").engine_version is None


def test_rules_name_formats_as_the_facts_of_checkpoints_do() -> None:
    formats = {checkpoint_quant(checkpoint(name)) for name in (None, *NAMED)}
    for rule in load_rules():
        conditions = (*rule.when, *(one for group in rule.unless for one in group))
        named = {word for one in conditions if one.fact == "quant" for word in one.wanted}
        shown = {one.quant for one in (*rule.example.fires, *rule.example.silent) if one.quant is not None}
        assert named | shown <= formats, rule.id
