"""Messages about a wrong field, with its place and what is expected."""

from __future__ import annotations

import pytest
from deployment_problems import problems, with_line

from sparkfleet.specs.deployment import Deployment

METHODS = "Known: none, ngram, nextn, mtp, eagle3, dflash, dflash2, dspark, draft."
FIELDS = tuple(Deployment.model_fields)
KNOWN = f"Known: {', '.join(FIELDS[:12])}, … ({len(FIELDS)} in all)."


@pytest.mark.parametrize("form", ["speculation: mpt", "speculation: {method: mpt, tokens: 3}"])
def test_an_unknown_method(form: str) -> None:
    assert problems(f"name: x\nmodel: a/b\ncontext: 32768\n{form}") == [
        f'd.yaml:4: speculation: unknown method "mpt". Did you mean "mtp"? {METHODS}'
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("speculation: atuo", f'speculation: unknown method "atuo". Did you mean "auto"? {METHODS}'),
        ("speculation: 3", "speculation: found the number 3. Expected a mapping (`key: value` lines)."),
        (
            "speculation: {tokens: 3}",
            "speculation.method: missing. Expected the way draft tokens are made.",
        ),
        (
            "speculation: {method: none, tokens: 3}",
            "speculation.tokens: given, but method none has no draft tokens. Expected none.",
        ),
        (
            "speculation: {method: ngram, draft: a/b}",
            "speculation.draft: given, but method ngram needs no checkpoint. Expected none.",
        ),
        (
            "objective: fast",
            'objective: unknown objective "fast". Known: interactive, throughput, context.',
        ),
        (
            "engine: vLLM",
            'engine: unknown engine "vLLM". Did you mean "vllm"?'
            " Known: auto, vllm, sglang, trtllm, llama.cpp, custom.",
        ),
        (
            "engine: vlm",
            'engine: unknown engine "vlm". Did you mean "vllm"?'
            " Known: auto, vllm, sglang, trtllm, llama.cpp, custom.",
        ),
        ("engine: 3", "engine: found the number 3. Expected one of auto, vllm, sglang, trtllm, llama.cpp, custom."),
        ("license: yes", 'license: unknown license "yes". Known: open, any.'),
        ("needs: [vison]", 'needs[0]: unknown need "vison". Did you mean "vision"? Known: vision, tools.'),
        ("needs: vision", 'needs: found "vision". Expected a list. Did you mean `needs: [vision]`?'),
        ("aliases: gpt-4o", 'aliases: found "gpt-4o". Expected a list. Did you mean `aliases: [gpt-4o]`?'),
        ("aliases: a, b", 'aliases: found "a, b". Expected a list.'),
        ("parallel: 2", "parallel: found the number 2. Expected a mapping (`key: value` lines). "
         "Did you mean `parallel: {tp: 2}`?"),
        ("parallel: 0", "parallel: found the number 0. Expected a mapping (`key: value` lines)."),
        ("needs: [tools, tools]", 'needs: "tools" is given twice. Expected each once.'),
        ("context: 32k", 'context: found "32k". Expected a whole number. Did you mean 32768?'),
        ("context: 32 k", 'context: found "32 k". Expected a whole number.'),
        ("context: 1.5", "context: found the number 1.5. Expected a whole number."),
        ("context: 0", "context: found the number 0. Expected at least 1."),
        ("engine_args:  # none", "engine_args: found nothing. Expected a list."),
        ("engine_args: [--x, true]", "engine_args[1]: found true. Expected text; put it in quotes."),
        (
            'engine_args: ["a\\nb"]',
            'engine_args[0]: found "a\\nb". Expected one line of text without control characters.',
        ),
        (
            'engine_args: ["\\ud800"]',
            'engine_args[0]: found "\\ud800". Expected one line of text without control characters.',
        ),
        ("env: [A=b]", "env: found a list of 1. Expected a mapping (`key: value` lines)."),
        ("env: {1A: x}", 'env.1A: found "1A". Expected a variable name: letters, digits and _, no digit first.'),
        ("keys: []", "keys: found a list of 0. Expected at least 1."),
        ("parallel: {tp: 2, tpx: 2}", 'parallel.tpx: unknown field "tpx". Did you mean "tp"? Known: tp, pp, ep, dcp.'),
        ("parallel:\ntp: 2", "tp: no field here. Expected under parallel, indented: `parallel: {tp: …}`."),
        ("draft: a/b", "draft: no field here. Expected under speculation, indented: `speculation: {draft: …}`."),
        ("parallel: {context: 8}", "parallel.context: no field under parallel. "
         "Expected beside parallel, with the same indentation."),
        ("max_model_len: 8192", 'max_model_len: unknown field "max_model_len", a flag of engines. Expected `context: …`.'),
        ("tensor-parallel-size: 2", 'tensor-parallel-size: unknown field "tensor-parallel-size", a flag of engines. '
         "Expected `parallel: {tp: …}`."),
        ("image: Registry/Name", 'image: found "Registry/Name". Expected an image: [registry/]name[:tag][@sha256:digest],'
         ' such as "registry/name".'),
        ("memory: 24", "memory: found the number 24. Expected text; put it in quotes."),
        ("memory: 24 GB/s", 'memory: found "24 GB/s". Expected a size with its unit, such as "24 GiB".'),
        ("port: 80", "port: given, but only `engine: custom` has it. Expected none."),
        ("runtime: process\nimage: a:b", "image: given, but `runtime: process` has none. Expected one or the other."),
        ("variants: [{model: a/b}]", "`model` or `variants`: both are given. Expected exactly one of them."),
        ("nodes: [Spark1]", 'nodes[0]: found "Spark1". Expected a-z, 0-9 and inner dashes, at most 32 characters,'
         ' such as "spark1".'),
    ],
)  # fmt: skip
def test_a_wrong_field(line: str, expected: str) -> None:
    (found,) = problems(with_line(line))
    assert found.partition(": ")[2] == expected


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("https://huggingface.co/Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("https://hf.co/Qwen/Qwen3-32B/", "Qwen/Qwen3-32B"),
        ("http://huggingface.co/Qwen/Qwen3-32B/tree/refs/pr/1", "Qwen/Qwen3-32B@refs/pr/1"),
    ],
)
def test_the_address_of_a_page_in_place_of_its_model(address: str, meant: str) -> None:
    (found,) = problems(f"name: x\nmodel: {address}")
    assert found.endswith(f"or an absolute path. Did you mean `model: {meant}`?")
    (variant,) = problems(f"name: x\nvariants: [{{model: '{address}'}}]")
    assert variant.endswith(f"Did you mean `model: {meant}`?")


def test_another_address_is_no_model() -> None:
    (found,) = problems("name: x\nmodel: https://example.org/Qwen/Qwen3-32B")
    assert found.endswith("or an absolute path.")


def test_a_field_of_the_deployment_in_a_variant() -> None:
    (found,) = problems("name: d\nvariants: [{model: a/b, aliases: [c]}]")
    assert found.endswith(
        "variants[0].aliases: no field under variants. Expected beside variants, with the same indentation."
    )


def test_a_flag_without_a_field_belongs_to_the_engine_s_arguments() -> None:
    (found,) = problems(with_line("kv_cache_dtype: fp8"))
    assert found.endswith(
        ' unknown field "kv_cache_dtype". Expected, if it is a flag of the engine: `engine_args: [--kv-cache-dtype, …]`.'
    )
    (found,) = problems(with_line("dtype: bf16"))
    assert ' unknown field "dtype". Known: engine, ' in found
    assert found.endswith(" A flag of the engine is an item of `engine_args`.")


def test_a_misspelt_field_is_told_once_and_checks_behind_it_run() -> None:
    assert problems("nmae: x\nmodel: a/b\nobjectiv: context\nport: 80\n") == [
        'd.yaml:1: nmae: unknown field "nmae". Did you mean "name"? ' + KNOWN,
        'd.yaml:3: objectiv: unknown field "objectiv". Did you mean "objective"? ' + KNOWN,
    ]
    assert problems("name: x\nmodel: a/b\nobjectiv: context\nport: 80\n") == [
        'd.yaml:3: objectiv: unknown field "objectiv". Did you mean "objective"? ' + KNOWN,
        "d.yaml:4: port: given, but only `engine: custom` has it. Expected none.",
    ]


def test_a_meaning_that_the_code_has_in_two_lines_is_one() -> None:
    (found,) = problems("name: d\nvariants: [{engine: vllm}]")
    assert found == (
        'd.yaml:2: variants[0].model: missing. Expected the checkpoint: Hub id "org/name" or "org/name@revision", with'
        ' ":TAG" for a GGUF model; "builtin:NAME"; or an absolute path, of a directory or a GGUF file.'
    )
