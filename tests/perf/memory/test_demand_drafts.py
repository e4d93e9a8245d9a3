"""A drafter's size: its own facts, what is published by its name, the size in its name, or said to be assumed."""

from __future__ import annotations

import pytest

from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.drafter import drafter_by_name
from sparkfleet.perf.engine_settings import EngineSettings
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.perf.predictor import Predictor
from sparkfleet.units import GIB

TARGET = "nvidia/Llama-3.3-70B-Instruct-FP4"


def bytes_of(
    predictor: Predictor, draft: str, *, method: str = "draft", split: Split | None = None
) -> dict[str, float]:
    settings = EngineSettings(
        engine="trtllm",
        release="",
        speculation=Speculation.model_validate({"method": method, "tokens": 4, "draft": draft}),
        eager=False,
        kv_dtype="fp8",
        batch_tokens=8192,
        link=None,
    )
    _, parts = predictor.memory(split or Split(), settings, 8192, 4)
    return {part.name: part.bytes for part in parts}


@pytest.fixture
def target() -> Predictor:
    known = known_checkpoint(TARGET)
    assert known is not None
    return Predictor(known)


def test_a_draft_that_is_known_by_name_has_its_size(target: Predictor) -> None:
    small = bytes_of(target, "nvidia/Llama-3.1-8B-Instruct-FP4")
    assert small["drafter"] == pytest.approx(6.0e9, rel=0.05)
    assert small["draft KV"] == 32 * 2 * 8 * 128 * 8192 * 4
    large = bytes_of(target, "meta-llama/Meta-Llama-3.1-405B")
    assert large["drafter"] > 700 * GIB
    assert drafter_by_name("draft", "nvidia/Llama-3.1-8B-Instruct-FP4").assumed == ""


def test_its_own_facts_come_first() -> None:
    known, own = known_checkpoint(TARGET), known_checkpoint("meta-llama/Meta-Llama-3.1-405B")
    assert known is not None
    assert own is not None
    told = Predictor(known, drafts=(("/models/draft", own),))
    assert bytes_of(told, "/models/draft")["drafter"] > 700 * GIB
    assert told.drafter(Speculation(method="draft", tokens=4, draft="/models/draft")).assumed == ""
    head = Predictor(known, drafts=(("acme/head-eagle3", own),))
    assert bytes_of(head, "acme/head-eagle3", method="eagle3")["drafter"] > 700 * GIB


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("acme/tiny-chat-8B", 16.0),
        ("acme/tiny-chat-8b-FP8", 8.0),
        ("acme/tiny-1.5B-NVFP4", 0.84),
        ("acme/tiny-350M", 0.7),
    ],
)
def test_a_size_in_the_name_is_taken_and_said(target: Predictor, name: str, gb: float) -> None:
    assert bytes_of(target, name)["drafter"] == pytest.approx(gb * 1e9, rel=0.01)
    assert bytes_of(target, name, split=Split(tp=2))["drafter"] == pytest.approx(gb * 1e9 / 2, rel=0.01)
    assert drafter_by_name("draft", name).assumed == f"the size of {name} is not known: taken from its name"


def test_what_cannot_be_told_is_said(target: Predictor) -> None:
    assert "not known" in drafter_by_name("draft", "/models/draft").assumed
    assert bytes_of(target, "/models/draft")["drafter"] == 12 * 8192**2 * 2
    # A head bears the name of what it drafts for: that name's size is not its own.
    head = drafter_by_name("dflash", "me/Qwen3.6-35B-A3B-DFlash")
    assert head.shape is None
    assert "me/Qwen3.6-35B-A3B-DFlash is not known" in head.assumed


def test_the_plan_counts_it_and_says_what_it_assumed(plan, sparks, ask) -> None:  # type: ignore[no-untyped-def]
    huge = ask(
        TARGET, engine="trtllm", speculation={"method": "draft", "draft": "meta-llama/Meta-Llama-3.1-405B"}
    )
    refused = plan(sparks(1), huge).refused
    assert "drafter" in " ".join(one.reason for one in refused[0].rejected)
    named = ask(TARGET, engine="trtllm", speculation={"method": "draft", "draft": "acme/tiny-chat-3B"})
    [found] = plan(sparks(1), named).deployments
    notes = found.groups[0].choice.notes
    assert "the size of acme/tiny-chat-3B is not known: taken from its name" in notes


QWEN38, DEEPSEEK = "nvidia/Qwen3.8-27B-NVFP4", "deepseek-ai/DeepSeek-V4-Flash-0731"


def drafter_of(predictor: Predictor, speculation: Speculation, split: Split | None = None) -> float:
    settings = EngineSettings(
        engine="vllm",
        release="",
        speculation=speculation,
        eager=False,
        kv_dtype="fp8",
        batch_tokens=8192,
        link=None,
    )
    _, parts = predictor.memory(split or Split(), settings, 8192, 4)
    return next(part.bytes for part in parts if part.name == "drafter")


@pytest.mark.parametrize(
    ("method", "draft", "gb"),
    [("dflash2", "z-lab/Qwen3.8-27B-DFlash2", 3.85), ("dspark", "RadixArk/Qwen3.8-27B-DSpark", 2.72)],
)
def test_a_published_draft_has_its_published_bytes(method: str, draft: str, gb: float) -> None:
    known = known_checkpoint(QWEN38)
    assert known is not None
    predictor = Predictor(known)
    speculation = Speculation.model_validate({"method": method, "tokens": 7, "draft": draft})
    assert drafter_of(predictor, speculation) == pytest.approx(gb * 1e9)
    assert drafter_of(predictor, speculation, Split(2)) == pytest.approx(gb * 1e9 / 2)
    assert predictor.drafter(speculation).assumed == ""


def test_dspark_in_the_checkpoint_is_counted_by_its_stages_until_its_weights_are_read() -> None:
    """Unsloth publishes the three stages of DeepSeek-V4-Flash-0731 apart, as a file of 11 GB."""
    known = known_checkpoint(DEEPSEEK)
    assert known is not None
    assert not known.weights_known
    stages = drafter_of(Predictor(known), Speculation(method="dspark", tokens=5))
    head = drafter_of(Predictor(known), Speculation(method="mtp", tokens=2))
    assert stages == pytest.approx(11e9, rel=0.03)
    read = Predictor(known.model_copy(update={"weights_known": True}))
    assert drafter_of(read, Speculation(method="dspark", tokens=5)) == pytest.approx(head)


def test_a_model_without_dspark_of_its_own_has_a_drafter_of_the_usual_size() -> None:
    known = known_checkpoint(QWEN38)
    assert known is not None
    speculation = Speculation(method="dspark", tokens=7)
    own = Predictor(known.model_copy(update={"dspark_block": 7}))
    assert drafter_of(own, speculation) != drafter_of(Predictor(known), speculation)


def test_under_load_the_speed_is_that_of_the_depth_under_load() -> None:
    known = known_checkpoint(QWEN38)
    assert known is not None
    predictor = Predictor(known)

    def settings(**fields: object) -> EngineSettings:
        speculation = Speculation.model_validate({"method": "mtp", **fields})
        return EngineSettings(
            engine="vllm",
            release="0.28",
            speculation=speculation,
            eager=False,
            kv_dtype="fp8",
            batch_tokens=8192,
            link=None,
        )

    both = settings(tokens=5, busy=2, busy_from=8)
    for concurrency, tokens in ((1, 5), (7, 5), (8, 2), (16, 2)):
        fixed = predictor.rates(Split(), settings(tokens=tokens), 8192, concurrency)
        assert predictor.rates(Split(), both, 8192, concurrency) == fixed
