"""Speculation by the engines' own names, as the field of a deployment."""

import json

import pytest

from sparkfleet.fleet.conversion.engine_line import engine_line
from sparkfleet.fleet.conversion.speculation_flags import speculation_of


def vllm(**config):
    return engine_line(["vllm", "serve", "m", "--speculative-config", json.dumps(config)])


def line(text):
    return engine_line(text.split())


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (vllm(method="mtp", num_speculative_tokens=2), {"method": "mtp", "tokens": 2}),
        (vllm(method="qwen3_next_mtp", num_speculative_tokens=2), {"method": "mtp", "tokens": 2}),
        (
            vllm(method="eagle3", model="o/d", num_speculative_tokens=3),
            {"method": "eagle3", "tokens": 3, "draft": "o/d"},
        ),
        (
            vllm(model="o/small", num_speculative_tokens=3),
            {"method": "draft", "tokens": 3, "draft": "o/small"},
        ),
        (vllm(method="ngram", num_speculative_tokens=4), {"method": "ngram", "tokens": 4}),
        (
            vllm(method="dflash", model="z-lab/M-DFlash", num_speculative_tokens=15),
            {"method": "dflash", "tokens": 15, "draft": "z-lab/M-DFlash"},
        ),
        (
            vllm(method="dflash", model="z-lab/M-DFlash2", num_speculative_tokens=7),
            {"method": "dflash2", "tokens": 7, "draft": "z-lab/M-DFlash2"},
        ),
        (vllm(method="dspark", num_speculative_tokens=5), {"method": "dspark", "tokens": 5}),
        (
            line(
                "vllm serve m --speculative-config.method mtp --speculative-config.num_speculative_tokens 2"
            ),
            {"method": "mtp", "tokens": 2},
        ),
        (
            line("python -m sglang.launch_server --speculative-algorithm EAGLE --speculative-num-steps 3"),
            {"method": "nextn", "tokens": 3},
        ),
        (
            line(
                "sglang serve --speculative-algorithm EAGLE3 --speculative-draft-model-path o/d"
                " --speculative-num-steps 5 --speculative-num-draft-tokens 20"
            ),
            {"method": "eagle3", "tokens": 5, "draft": "o/d"},
        ),
        (
            line(
                "sglang serve --speculative-algorithm DFLASH --speculative-draft-model-path o/M-DFlash2"
                " --speculative-num-draft-tokens 8"
            ),
            {"method": "dflash2", "tokens": 7, "draft": "o/M-DFlash2"},
        ),
        (
            line("llama-server -m m.gguf --spec-type draft-mtp --spec-draft-n-max 3"),
            {"method": "mtp", "tokens": 3},
        ),
        (
            line("llama-server -m m.gguf -md /d.gguf --draft-max 8"),
            {"method": "draft", "tokens": 8, "draft": "/d.gguf"},
        ),
    ],
)
def test_methods(found, field):
    assert speculation_of(found).field == field


@pytest.mark.parametrize(
    "found",
    [
        line("vllm serve m"),
        vllm(method="medusa", num_speculative_tokens=2),
        line("vllm serve m --speculative-config {broken"),
        line("vllm serve m --speculative-config 3"),
        line("trtllm-serve m"),
    ],
)
def test_without_one_that_has_a_field(found):
    assert speculation_of(found) is None


def test_what_no_field_has_is_named():
    assert speculation_of(vllm(method="mtp", attention_backend="B12X")).rest == ('attention_backend: "B12X"',)
    found = speculation_of(
        line(
            "sglang serve --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 4"
        )
    )
    assert found.rest == ("--speculative-eagle-topk 4",)
    assert found.flags == {
        "--speculative-algorithm",
        "--speculative-num-steps",
        "--speculative-eagle-topk",
    }
