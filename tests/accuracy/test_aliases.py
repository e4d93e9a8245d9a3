"""Words of cells, as people write them: numbers, engines, methods, formats."""

from __future__ import annotations

import pytest
from accuracy_rows import row

from sparkfleet.accuracy.aliases import engine_in, format_of, method_in, number, quant_label
from sparkfleet.accuracy.rows import case_of
from sparkfleet.knowledge.measurements import architectures


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,024", 1024),
        ("1 024", 1024),
        ("~2048", 2048),
        ("2K", 2048),
        ("1.5k", 1536),
        ("c8", 8),
        ("C = 8", 8),
        ("two", 2),
        ("8 (each)", 8),
        ("4-8", None),
        ("-1", None),
        ("1,5", None),
        ("nan", None),
        ("1e400", None),
        ("", None),
        ("8 apples", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text, {"k": 1024}, "c") == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vLLM 0.11", "vllm"),
        ("TensorRT-LLM", "trtllm"),
        ("trt-llm", "trtllm"),
        ("llama-cpp", "llama.cpp"),
        ("llama.cpp b7941", "llama.cpp"),
        ("SGLang", "sglang"),
        ("sparkinfer/vllm", "vllm"),
        ("ollama/llama.cpp", "ollama"),
        ("sgl", "sglang"),
        ("llamafile", "llama.cpp"),
        ("foo", None),
    ],
)
def test_engines(text: str, name: str | None) -> None:
    assert engine_in(text) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mtp k=3", ("mtp", 3)),
        ("MTP-3", ("mtp", 3)),
        ("mtp 3/1/4", ("mtp", 3)),
        ("qwen3_next_mtp", ("mtp", None)),
        ("NEXTN", ("mtp", None)),
        ("NEXTN 1 nodes", ("mtp", None)),
        ("EAGLE-3", ("eagle3", None)),
        ("DFlash2-7 / 2 seqs", ("dflash2", 7)),
        ("DFlash 2x Spark", ("dflash", None)),
        ("DSpark b7", ("dspark", 7)),
        ("draft model", ("draft", None)),
        ("no spec", ("none", None)),
        ("medusa", None),
        ("p-eagle", None),
        ("mtp + ngram", None),
        ("EAGLE/MTP", ("mtp", None)),
        ("D-Flash k=3", ("dflash", 3)),
        ("D-Spark", ("dspark", None)),
        ("2x DGX Spark", None),
    ],
)
def test_methods(text: str, found: tuple[str, int | None] | None) -> None:
    assert method_in(text) == found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bfloat16", "bf16"),
        ("float16", "bf16"),
        ("16-bit", "bf16"),
        ("AutoRound", "int4"),
        ("AutoRound int4", "int4"),
        ("INT-4", "int4"),
        ("int4-int8mix", "int4-int8"),
        ("GGUF UD-Q5_K_XL", "q5_k"),
        ("q4_k_m/q5_k_m", "q4_k"),
        ("NV-FP4", "nvfp4"),
        ("w4a16 nvfp4", "nvfp4"),
        ("W4A4", "nvfp4"),
        ("W4A16", "int4"),
        ("w8a8", "fp8"),
        ("mxfp4-experts+mxfp8", "fp8+mxfp4"),
        ("GPTQ-Int8", "fp8"),
        ("awq 8-bit", "fp8"),
        ("int4 + fp8", "int4-int8"),
        ("hybrid int4+fp8", "int4-int8"),
        ("fp8+nvfp4", "nvfp4"),
        ("secret", None),
    ],
)
def test_formats(text: str, name: str | None) -> None:
    assert format_of(quant_label(text)) == name


@pytest.mark.parametrize("text", ["no spec", "none", "None", "false", "off", "-", "n/a", ""])
def test_no_speculation(text: str) -> None:
    assert case_of(row(spec_method=text), architectures()).setup.method == "none"
