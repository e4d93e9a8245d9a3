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
    assert "Not served so: deepseek-v3.1. `sparkfleet plan MODEL --sparks 1` has the reason." in text
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
    assert found["not_served"] == ["deepseek-v3.1"]
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


def test_a_narrow_terminal_has_fewer_columns(sparkfleet, monkeypatch):
    from sparkfleet.cli.planning import suggest

    monkeypatch.setattr(suggest, "NARROW", 10_000)
    assert "MEMORY" not in sparkfleet("suggest", "--sparks", 1)[1]
