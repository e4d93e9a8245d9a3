from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.models.model_names import matches
from sparkfleet.knowledge.models.speculators import (
    SPECULATORS,
    Speculator,
    sized_draft,
    speculator_with,
    speculators_of,
)
from sparkfleet.knowledge.published.evidence import FILE, read_evidence

ALL = SPECULATORS.content.speculators

ONE = """
version: 1
speculators:
- id: a-mtp
  targets: ["*Model-A*"]
  method: mtp
  engines: [vllm]
  head: checkpoint
  tokens: {alone: 4, busy: 2, busy_from: 8}
  acceptance:
  - {content: code, tokens: 4, rate: 0.5, low: 0.25, high: 0.75, sources: [s], date: "2026"}
  - {content: prose, tokens: 4, length: 2.5, sources: [s], date: "2026"}
  gains:
  - {tokens: 4, concurrency: 1, ratio: 1.5, engine: vllm, quant: fp8, sources: [s], date: "2026"}
  sources: [s]
  date: "2026"
"""


@pytest.mark.parametrize("speculator", ALL, ids=lambda one: one.id)
def test_a_step_yields_no_more_than_was_drafted(speculator: Speculator) -> None:
    for measured in speculator.acceptance:
        low, mid, high = measured.tokens_per_step
        assert 1.0 <= low <= mid <= high
        assert measured.tokens is None or high <= measured.tokens + 1


@pytest.mark.parametrize(
    ("model", "engine", "expected"),
    [
        ("Qwen/Qwen3.6-27B-FP8", "sglang", {"nextn", "ngram", "dflash"}),
        ("nvidia/Qwen3.6-27B-NVFP4", "vllm", {"mtp", "dflash"}),
        ("rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm", "vllm", {"mtp", "dflash"}),
        ("openai/gpt-oss-120b", "trtllm", {"eagle3"}),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "trtllm", {"draft"}),
        ("nvidia/Qwen3-235B-A22B-FP4", "trtllm", {"eagle3"}),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "vllm", set()),
        ("somebody/else", None, set()),
    ],
)
def test_speculators_of_the_models_in_the_field_reports(
    model: str, engine: str | None, expected: set[str]
) -> None:
    assert {one.method for one in speculators_of(model, engine)} == expected


def test_the_published_drafts_are_named() -> None:
    drafts = {one.id: one.draft for one in ALL}
    assert drafts["qwen3.6-35b-a3b-dflash"] == "z-lab/Qwen3.6-35B-A3B-DFlash"
    assert drafts["qwen3-235b-eagle3"] == "nvidia/Qwen3-235B-A22B-Eagle3"


def test_acceptance_depends_on_content() -> None:
    """DeepSeek-V4-Flash, DSpark k=5, one source: structured 78 %, code 69 %, prose 34 % (benchmark notes, section 3)."""
    (dspark,) = (one for one in ALL if one.id == "deepseek-v4-flash-dspark")
    mids = {one.content: one.tokens_per_step[1] for one in dspark.acceptance if one.tokens == 5}
    assert mids["prose"] < mids["code"] < mids["structured"] < mids["counting"]


def test_rates_become_lengths() -> None:
    (speculator,) = SPECULATORS.read(ONE).speculators
    assert [one.tokens_per_step for one in speculator.acceptance] == [(2.0, 3.0, 4.0), (2.5, 2.5, 2.5)]


def test_the_depth_falls_with_the_crowd() -> None:
    (speculator,) = SPECULATORS.read(ONE).speculators
    assert speculator.tokens is not None
    assert [speculator.tokens.at(concurrency) for concurrency in (1, 7, 8, 64)] == [4, 4, 2, 2]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("method: mtp", "method: mpt", "a-mtp: method: "),
        ("rate: 0.5", "rate: 1.5", "a-mtp: acceptance.0.rate: "),
        ("rate: 0.5", "rate: 0.5, length: 2.0", "a-mtp: acceptance.0: expected either length or rate"),
        ("tokens: 4, rate", "tokens: null, rate", "a-mtp: acceptance.0: a rate needs tokens"),
        ("low: 0.25", "low: 0.6", "a-mtp: acceptance.0: expected low <= 0.5"),
        ("length: 2.5", "length: 0.5", "a-mtp: acceptance.1.length: "),
        ("content: code", "content: poetry", "a-mtp: acceptance.0.content: "),
        (", busy_from: 8", "", "a-mtp: tokens: expected busy and busy_from together"),
        (
            "head: checkpoint",
            "head: checkpoint\n  draft: x/y",
            "a-mtp: a draft is only named|a-mtp: entry: a draft",
        ),
        ("ratio: 1.5", "ratio: 0", "a-mtp: gains.0.ratio: "),
        ("targets: ['*Model-A*']", "targets: []", ""),
    ],
)
def test_a_wrong_speculator_is_named(old: str, new: str, complaint: str) -> None:
    text = ONE.replace('["*Model-A*"]', "['*Model-A*']")
    assert old in text
    with pytest.raises(SpecError, match=f"speculators.yaml: .*({complaint})"):
        SPECULATORS.read(text.replace(old, new, 1))


def test_a_draft_without_measurements_is_known_by_name_and_not_proposed() -> None:
    draft = "XiaomiMiMo/MiMo-V2.5-DFlash"
    known = speculator_with(f"{draft}@main")
    assert known is not None
    assert known.tokens is not None
    assert known.tokens.alone == 7
    target = "XiaomiMiMo/MiMo-V2.5"
    assert known.serves(target)
    assert draft not in {one.draft for one in speculators_of(target)}
    assert all(one.proposed or one.draft for one in ALL)


def test_a_draft_that_is_not_proposed_needs_a_name() -> None:
    with pytest.raises(SpecError, match=r"a-mtp.*proposed: false is for a named draft"):
        SPECULATORS.read(ONE.replace("  head: checkpoint\n", "  head: checkpoint\n  proposed: false\n"))


def test_a_draft_of_nvidias_own_line_for_a_spark_is_proposed() -> None:
    """NVIDIA ran it: no other measurement is needed."""
    named = [
        one for one in ALL if any("dgx-spark" in source and "NVIDIA/" in source for source in one.sources)
    ]
    assert len(named) >= 3
    assert all(one.proposed for one in named)
    assert "google/gemma-4-26B-A4B-it-assistant" in {
        one.draft for one in speculators_of("nvidia/Gemma-4-26B-A4B-NVFP4", "vllm")
    }


def test_an_engine_with_published_runs_of_a_method_is_one_of_its_engines() -> None:
    """A plan would name the others as the only ones: "published for this model with vLLM only"."""
    heads = {"mtp": ("mtp", "nextn")}
    for run in read_evidence(packaged(FILE)):
        methods = heads.get(run.method, (run.method,))
        own = [one for one in ALL if one.method in methods and matches(run.model, one.targets)]
        if (
            run.engine == "llama.cpp"
        ):  # drafts with the heads of its own files, and is never named as one of several
            continue
        assert not own or any(run.engine in one.engines for one in own), run


def test_the_size_of_a_separate_drafter_is_known_by_its_target() -> None:
    found = sized_draft("nvidia/Gemma-4-31B-IT-NVFP4", "mtp")
    assert found is not None
    assert found.draft == "google/gemma-4-31B-it-assistant"
    assert sized_draft("Qwen/Qwen3.6-27B", "mtp") is None  # its drafts are in the checkpoint
