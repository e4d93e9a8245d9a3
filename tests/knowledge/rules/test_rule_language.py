from __future__ import annotations

from typing import Any

import pytest

from sparkfleet.knowledge.rules.rule_context import FACTS, RuleContext, parse_flags
from sparkfleet.knowledge.rules.rule_language import holds, read_conditions
from sparkfleet.knowledge.versions import Truth

YES, NO, UNKNOWN = Truth.YES, Truth.NO, Truth.UNKNOWN


def ask(written: dict[str, Any], **facts: Any) -> Truth:
    return holds(read_conditions(written), RuleContext(**facts))


@pytest.mark.parametrize(
    ("written", "facts", "answer"),
    [
        ({"engine": "vllm"}, {"engine": "vllm"}, YES),
        ({"engine": "vllm"}, {"engine": "sglang"}, NO),
        ({"quant": ["nvfp4", "mxfp4"]}, {"quant": "MXFP4"}, YES),
        ({"model": "*/qwen3.6-27b*"}, {"model": "Qwen/Qwen3.6-27B-FP8"}, YES),
        ({"model": "nvidia/*Nemotron*"}, {"model": "unsloth/Nemotron-3"}, NO),
        ({"kv_dtype": {"not": ["fp8*"]}}, {"kv_dtype": "auto"}, YES),
        ({"kv_dtype": {"not": ["fp8*"]}}, {"kv_dtype": "fp8_e4m3"}, NO),
        ({"image_digest": {"present": False}}, {"image_digest": ""}, YES),
        ({"image_digest": {"present": False}}, {"image_digest": "sha256:1"}, NO),
        ({"engine_version": "<=0.19"}, {"engine_version": "0.19.1"}, YES),
        ({"engine_version": ["<=0.19", ">=0.27"]}, {"engine_version": "0.28.0"}, YES),
        ({"image_tag": ">=26.04"}, {"image": "nvcr.io/nvidia/vllm:26.05-py3"}, YES),
        ({"image_tag": ">=26.04"}, {"image": "nvcr.io/nvidia/vllm:latest"}, UNKNOWN),
        ({"image_tag": ">=26.04"}, {"image": ""}, NO),
        ({"image_tag_name": "*amd64*"}, {"image": "mirror.lan:5000/vllm:v0.31.0-amd64"}, YES),
        ({"image_tag_name": "*amd64*"}, {"image": "mirror.lan:5000/amd64/vllm:v0.31.0"}, NO),
        ({"image_tag_name": "*amd64*"}, {"image": "mirror.lan:5000/amd64/vllm"}, NO),
        ({"image_name": "localhost:5000/vllm"}, {"image": "localhost:5000/vllm"}, YES),
        ({"nodes": ">=2"}, {"nodes": 2.0}, YES),
        ({"nodes": 1}, {"nodes": 2.0}, NO),
        ({"speculation_tokens": ["5-8", ">=13"]}, {"speculation_tokens": 14.0}, YES),
        ({"speculation_tokens": ["5-8", ">=13"]}, {"speculation_tokens": 9.0}, NO),
        ({"memory_fraction": ">=0.8,<0.9"}, {"memory_fraction": 0.9}, NO),
        ({"cuda_graphs": True}, {"cuda_graphs": True}, YES),
        ({"cuda_graphs": False}, {"cuda_graphs": True}, NO),
        ({"features": "gdn"}, {"features": ("moe", "gdn")}, YES),
        ({"features": {"all": ["moe", "gdn"]}}, {"features": ("gdn",)}, NO),
        ({"features": {"none": ["moe"]}}, {"features": ()}, YES),
        ({"flags": "--enforce-eager"}, {"flags": ("--enforce-eager",)}, YES),
        ({"flags": "--kv-cache-dtype=fp8*"}, {"flags": ("--kv_cache_dtype", "fp8_e4m3")}, YES),
        ({"flags": "--kv-cache-dtype=fp8*"}, {"flags": ("--kv-cache-dtype=auto",)}, NO),
        ({"flags": {"none": ["--moe-backend"]}}, {"flags": ()}, YES),
        ({"env": {"none": ["NCCL_NET_PLUGIN=none"]}}, {"env": (("NCCL_NET_PLUGIN", "ofi"),)}, YES),
        ({"env": {"all": ["A", "B=1"]}}, {"env": (("A", "x"), ("B", "1"))}, YES),
        ({"engine": "vllm", "nodes": ">=2"}, {"engine": "vllm", "nodes": 1.0}, NO),
        # What is not known is not known, whatever is asked of it.
        ({"engine": "vllm"}, {}, UNKNOWN),
        ({"flags": {"none": ["--moe-backend"]}}, {}, UNKNOWN),
        ({"image_digest": {"present": False}}, {}, UNKNOWN),
        ({"kv_dtype": {"not": ["fp8*"]}}, {}, UNKNOWN),
        # … unless another condition settles it.
        ({"engine": "vllm", "nodes": ">=2"}, {"nodes": 1.0}, NO),
    ],
)
def test_conditions(written: dict[str, Any], facts: dict[str, Any], answer: Truth) -> None:
    assert ask(written, **facts) is answer


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({}, "a mapping of facts"),
        ("engine", "a mapping of facts"),
        ({"engin": "vllm"}, "engin: not a fact"),
        ({"engine": 3}, "engine: expected text in quotes, got 3"),
        ({"engine": []}, "engine: expected at least one value"),
        ({"engine_version": 0.19}, "engine_version: expected text in quotes"),
        ({"engine_version": ">=new"}, "engine_version: .*not a version"),
        ({"nodes": "many"}, "nodes: expected a number or a range"),
        ({"nodes": True}, "nodes: expected text in quotes"),
        ({"cuda_graphs": "yes"}, "cuda_graphs: expected true or false"),
        ({"nodes": {"all": [1]}}, "nodes: all is no condition"),
        ({"flags": {"any": ["--a"]}}, "flags: any is no condition.*these are: all, none, the values alone"),
        ({"features": {"present": True}}, "features: present is no condition"),
        ({"features": {"none": ["gnd"]}}, 'features: "gnd" is none of gdn, hybrid,'),
        ({"engine": {"not": "vlm"}}, 'engine: "vlm" is none of'),
        ({"engine": {}}, "engine: {} is no condition"),
        ({"image_digest": {"present": "no"}}, "image_digest: expected true or false"),
    ],
)
def test_invalid_conditions(written: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_conditions(written)


def test_conditions_print_themselves() -> None:
    written = {
        "engine": ["vllm", "sglang"],
        "nodes": ">=2",
        "features": {"none": ["moe"]},
        "image_digest": {"present": False},
    }
    said = [str(condition) for condition in read_conditions(written)]
    assert said == ["engine vllm, sglang", "nodes >=2", "features none of moe", "image_digest not given"]


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (("--a", "--b=1", "--c", "2", "3"), {"--a": "", "--b": "1", "--c": "2 3"}),
        (("--spec", '{"k": 3}'), {"--spec": '{"k": 3}'}),
        (("serve", "--tp_size", "2"), {"--tp-size": "2"}),
        (("--x", "-1"), {"--x": "-1"}),
        (("--x", "1", "--x", "2"), {"--x": "2"}),
        ((), {}),
    ],
)
def test_flags_by_name(argv: tuple[str, ...], flags: dict[str, str]) -> None:
    assert parse_flags(argv) == flags


def test_every_fact_has_a_kind() -> None:
    assert set(RuleContext.model_fields) <= set(FACTS)
    assert all(getattr(RuleContext(), fact) is None for fact in FACTS)
