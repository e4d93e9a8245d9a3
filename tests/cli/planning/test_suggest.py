"""`sparkfleet suggest`: a table of models, what is left out of it, and the command that has the reasons."""

import json

import pytest

from sparkfleet.cli.output import console
from sparkfleet.fleet.planning import suggestions as module

MODELS = {
    "qwen3.6-27b": ("Qwen/Qwen3.6-27B-FP8", "nvidia/Qwen3.6-27B-NVFP4"),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "deepseek-v3.1": ("deepseek-ai/DeepSeek-V3.1",),
}


@pytest.fixture(autouse=True)
def few_models(monkeypatch):
    monkeypatch.setattr(module, "published_models", lambda: MODELS)
    monkeypatch.setattr(console, "width", 140)


def test_a_table_with_speeds(sparkfleet):
    code, out, _ = sparkfleet("suggest", "--sparks", 1)
    assert code == 0
    heading, first, second, *notes = out.splitlines()
    assert heading.split() == ["MODEL", "SIZE", "RUNS", "AS", "TOK/S", "MEMORY", "CONTEXT"]
    assert first.startswith("ggml-org/gpt-oss-120b-GGUF:MXFP4")
    assert "117B, 5.1B active" in first
    assert "published" in first
    assert second.startswith("nvidia/Qwen3.6-27B-NVFP4")
    assert "27.4B" in second
    text = "\n".join(notes)
    assert (
        "Not served on these Sparks with these options: deepseek-ai/DeepSeek-V3.1. `sparkfleet plan" in text
    )
    assert "nothing here measures the quality of answers" in text
    assert "`sparkfleet plan ggml-org/gpt-oss-120b-GGUF:MXFP4 --sparks 1` has the reasons" in text


def test_slow_ones_are_counted(sparkfleet):
    _, out, _ = sparkfleet("suggest", "--sparks", 1, "--at-least", 1000)
    assert "2 models below 1000 tok/s left out: `--at-least 0` shows all." in out
    assert "has the reasons" not in out


def test_json_has_the_rungs(sparkfleet):
    code, out, _ = sparkfleet("suggest", "--sparks", 2, "--objective", "throughput", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["not_served"] == ["deepseek-ai/DeepSeek-V3.1"]
    assert found["suggestions"][0]["model"] == "openai/gpt-oss-120b"
    assert found["suggestions"][0]["rung"]["candidate"]["engine"] in ("vllm", "sglang", "trtllm")


def test_the_nodes_of_an_inventory_are_assumed_to_be_idle(sparkfleet, two_sparks):
    code, out, _ = sparkfleet("suggest", "-i", two_sparks, "--needs", "vision")
    assert code == 0
    assert "TP=2" in out
    assert f"`sparkfleet plan nvidia/Qwen3.6-27B-NVFP4 -i {two_sparks}` has the reasons" in out.replace(
        "\n", " "
    )


def test_without_an_inventory_it_names_the_way(sparkfleet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = sparkfleet("suggest")
    assert code == 1
    assert "`sparkfleet suggest --sparks 2` needs none." in err


def test_the_sparks_of_the_options_and_the_fields_are_those_of_the_next_command(sparkfleet):
    options = ("--context", 65536, "--objective", "throughput", "--content", "code")
    code, out, _ = sparkfleet("suggest", "--sparks", 1, "--assume", "dgx-spark-64", *options)
    assert code == 0
    assert "gpt-oss-120b" not in out.partition("\n\n")[0]  # 61 GiB of weights
    more = "--sparks 1 --assume dgx-spark-64 --context 65536 --objective throughput --content code"
    assert f"`sparkfleet plan ORG/MODEL {more}` has the reason." in out
    assert f"next: `sparkfleet plan Qwen/Qwen3.6-27B-FP8 {more}` has the reasons.\n" in out


def test_a_pipe_has_whole_lines(sparkfleet, monkeypatch):
    monkeypatch.setattr(console, "width", 80)
    out = sparkfleet("suggest", "--sparks", 1)[1]
    heading, first, *_ = out.splitlines()
    assert heading.split() == ["MODEL", "SIZE", "RUNS", "AS", "TOK/S", "MEMORY", "CONTEXT"]
    assert len(first) > 100
    assert first.index("GiB") > heading.index("MEMORY")
    assert first.index(" × ") > heading.index("CONTEXT")


def test_a_narrow_terminal_has_the_name_in_a_line_and_everything_else_below(sparkfleet, monkeypatch):
    monkeypatch.setattr(console, "width", 60)
    monkeypatch.setattr(type(console), "is_terminal", property(lambda _: True))
    out = sparkfleet("suggest", "--sparks", 1)[1]
    first, below, *_ = out.split("\n", 1)[0], out.split("\n", 1)[1]
    assert first == "ggml-org/gpt-oss-120b-GGUF:MXFP4"
    row = " ".join(below.partition("\nnvidia/")[0].split())
    assert row.startswith("54.1 tok/s (")
    assert "117B, 5.1B active · TP=1 · llama.cpp · GGUF-MXFP4" in row
    assert row.endswith(" GiB · context 32768 × 4")
    assert all(len(line) <= 60 for line in below.partition("\n\n")[0].splitlines())


def test_what_is_known_to_answer_wrongly_is_named(sparkfleet, monkeypatch):
    monkeypatch.setattr(
        module, "published_models", lambda: {"glm-5.3-flash": ("LibertAIDAI/GLM-5.3-Flash-NVFP4",)}
    )
    _, out, _ = sparkfleet("suggest", "--sparks", 2)
    name = "LibertAIDAI/GLM-5.3-Flash-NVFP4"
    assert f"Known to answer wrongly: {name} (`sparkfleet explain glm53-libertaidai-tokens`)." in out
