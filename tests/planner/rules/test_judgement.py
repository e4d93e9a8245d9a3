from __future__ import annotations

from typing import Any

import pytest

from sparkfleet.errors import SparkfleetError
from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.knowledge.rules.rules import Rule, doctor_rules, load_rules
from sparkfleet.planner.rules.judgement import RuleMatch, fold, judge, merge_flags, rejections
from sparkfleet.planner.rules.rule_text import explain_rule

RULES = {rule.id: rule for rule in load_rules()}

SPARK = {"device": "cuda", "nodes": 1.0, "tp": 1.0, "pp": 1.0, "flags": (), "env": ()}
QWEN_27B = {"features": ("gdn", "hybrid"), "fits_one_node": True, "weight_gb": 28.0}
QWEN_35B = {"features": ("moe", "gdn", "hybrid", "vision"), "weight_gb": 22.0}
VLLM_AUTO = {
    "engine": "vllm",
    "attention_backend": "auto",
    "moe_backend": "auto",
    "linear_backend": "auto",
    "kv_dtype": "auto",
    "load_format": "auto",
    "executor": "mp",
    "cuda_graphs": True,
    "memory_fraction": 0.8,
    "memory_fraction_set": True,
    "image": "",
}


def situation(*parts: dict[str, Any], **facts: Any) -> RuleContext:
    merged: dict[str, Any] = dict(SPARK)
    for part in parts:
        merged |= part
    return RuleContext(**(merged | facts))


def fired(found: tuple[RuleMatch, ...]) -> set[str]:
    return {finding.rule.id for finding in found if finding.certain}


def possible(found: tuple[RuleMatch, ...]) -> set[str]:
    return {finding.rule.id for finding in found if not finding.certain}


SGLANG_27B = {"engine": "sglang", "model": "Qwen/Qwen3.6-27B-FP8", "quant": "fp8"}


@pytest.mark.parametrize(
    ("case", "rejecting"),
    [
        # field report 000: NEXTN on the build of that time
        ((SGLANG_27B, QWEN_27B, {"engine_version": "0.5.12 original", "speculation": "nextn"}), set()),
        # field report 001: the same tag a month later
        (
            (SGLANG_27B, QWEN_27B, {"engine_version": "0.5.12 re-tag", "speculation": "nextn"}),
            {"sglang-nextn-none-typeerror", "sglang-eagle-prealloc-oom"},
        ),
        ((SGLANG_27B, QWEN_27B, {"engine_version": "0.5.12 re-tag", "speculation": "ngram"}), set()),
        (
            (
                VLLM_AUTO,
                QWEN_27B,
                {"model": "nvidia/Qwen3.6-27B-NVFP4", "quant": "nvfp4", "engine_version": "0.27.1"},
            ),
            set(),
        ),
        # field report 002: DFlash k=3 and k=6, and a license
        (
            (
                VLLM_AUTO,
                QWEN_35B,
                {
                    "model": "rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm",
                    "speculation": "dflash",
                    "speculation_tokens": 3.0,
                    "image": "dgx-vllm-eugr-nightly:2026-06",
                },
            ),
            set(),
        ),
        (
            (
                VLLM_AUTO,
                QWEN_35B,
                {
                    "model": "rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm",
                    "speculation": "dflash",
                    "speculation_tokens": 6.0,
                    "image": "dgx-vllm-eugr-nightly:2026-06",
                },
            ),
            {"dflash-k6-kv-padding-oom"},
        ),
        (
            (
                VLLM_AUTO,
                QWEN_35B,
                {"model": "rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm", "needs": ("vision",)},
            ),
            {"prismaquant-drops-vision"},
        ),
        (
            (
                VLLM_AUTO,
                QWEN_35B,
                {
                    "model": "Qwen/Qwen3.6-35B-A3B-FP8",
                    "quant": "fp8",
                    "needs": ("vision",),
                    "engine_version": "0.27.1",
                },
            ),
            set(),
        ),
        (
            (
                VLLM_AUTO,
                {"model": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "license_policy": "open"},
            ),
            {"license-nvidia-open-model"},
        ),
        # field report 004: two Sparks
        (
            (
                VLLM_AUTO,
                {
                    "model": "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
                    "quant": "gptq-int4",
                    "features": ("moe",),
                    "engine_version": "0.19.0",
                    "nodes": 2.0,
                    "tp": 2.0,
                    "ep": 2.0,
                    "topology": "direct",
                    "image": "nvcr.io/nvidia/vllm:26.04-py3",
                },
            ),
            set(),
        ),
    ],
)
def test_the_systems_of_the_field_reports(case: tuple[dict[str, Any], ...], rejecting: set[str]) -> None:
    verdict = fold(judge(situation(*case)))
    assert {finding.rule.id for finding in verdict.rejected_by} == rejecting
    assert verdict.rejected == bool(rejecting)


def test_a_fact_that_made_it_fire_is_named() -> None:
    found = judge(situation(SGLANG_27B, QWEN_27B, engine_version="0.5.12 re-tag", speculation="nextn"))
    (finding,) = (one for one in found if one.rule.id == "sglang-eagle-prealloc-oom")
    assert list(finding.because) == [
        "engine sglang",
        "engine_version 0.5.12 re-tag",
        "speculation nextn",
    ]
    assert finding.unknown == ()


def test_the_worst_comes_first() -> None:
    found = judge(
        situation(VLLM_AUTO, QWEN_27B, engine_version="0.26.0", nodes=2.0, tp=2.0, driver="590.48.01")
    )
    severities = [finding.rule.severity for finding in found]
    assert severities == sorted(severities, key=["garbage", "fails", "slow", "limits"].index)
    assert severities[0] == "garbage"


def test_a_moved_tag_is_a_doubt_and_no_rejection() -> None:
    found = judge(situation(SGLANG_27B, QWEN_27B, engine_version="0.5.12", speculation="nextn"))
    verdict = fold(found)
    assert not verdict.rejected
    assert "sglang-eagle-prealloc-oom" in {finding.rule.id for finding in verdict.doubts}
    (doubt,) = (one for one in verdict.doubts if one.rule.id == "sglang-eagle-prealloc-oom")
    assert doubt.unknown == ("engine_version",)
    assert not doubt.counts


def test_possible_garbage_of_an_unknown_version_is_insured_against() -> None:
    """The combination is the one that computes wrong results, and no version excludes it."""
    found = judge(situation(VLLM_AUTO, features=("moe",), quant="nvfp4", engine_version="nightly"))
    assert "fp4-cutlass-auto" in possible(found)
    assert "--moe-backend=marlin" in fold(found).flags


@pytest.mark.parametrize("version", [None, "nightly", "0.1.dev20003+gad848fc41.d20260815"])
def test_no_release_older_than_the_architecture_is_possible(version) -> None:
    facts = {
        "features": ("moe", "gdn", "hybrid"),
        "quant": "nvfp4",
        "engine_version": version,
        "tp": 2.0,
        "nodes": 2.0,
    }
    facts |= {"cuda_graphs": True, "speculation": "mtp", "concurrency": 4.0}
    older = {"fp4-cutlass-gemm-runner-sm120", "fp4-cutlass-auto", "tp2-gdn-wrong-output"}
    assert older <= possible(judge(situation(VLLM_AUTO, model_type="qwen3_moe", **facts)))
    found = possible(judge(situation(VLLM_AUTO, model_type="qwen4_exp", **facts)))
    assert not older & found
    # Builds between 0.28 and 0.29, the first that lists the architecture, may have it.
    assert "hybrid-mtp-prefix-cache-corrupts" in found


def test_possible_garbage_of_an_unknown_checkpoint_is_not() -> None:
    found = judge(situation(VLLM_AUTO, engine_version="0.19.0"))
    assert "fp4-cutlass-auto" in possible(found)
    assert fold(found).flags == ()


def test_a_possible_rejection_never_rejects_not_even_garbage() -> None:
    found = judge(situation(VLLM_AUTO, QWEN_27B, engine_version="nightly", speculation="ngram"))
    assert "ngram-on-gdn-corrupts" in possible(found)
    assert not fold(found).rejected


def test_nothing_but_known_facts_on_a_cpu() -> None:
    assert judge(RuleContext(device="cpu", engine="vllm", engine_version="0.32.0+cpu")) == ()


def test_findings_do_not_depend_on_the_order_of_rules() -> None:
    facts = situation(
        VLLM_AUTO,
        QWEN_27B,
        engine_version="0.26.0",
        nodes=2.0,
        tp=2.0,
        speculation="mtp",
        speculation_tokens=5.0,
    )
    forwards, backwards = judge(facts, tuple(RULES.values())), judge(facts, tuple(reversed(RULES.values())))
    assert fired(forwards) == fired(backwards) > set()
    assert fired(judge(facts)) == fired(forwards) - {rule.id for rule in doctor_rules()}


def test_a_cure_is_silent_once_it_is_applied() -> None:
    facts = situation(
        VLLM_AUTO, features=("moe",), quant="nvfp4", engine_version="0.19.0", speculation="none"
    )
    first = fold(judge(facts))
    assert first.flags == ("--moe-backend=marlin", "--attention-backend=TRITON_ATTN")
    cured = facts.model_copy(
        update={
            "flags": first.flags,
            "env": first.env,
            "moe_backend": "marlin",
            "attention_backend": "TRITON_ATTN",
        }
    )
    second = fold(judge(cured))
    assert second.env == (("VLLM_MARLIN_USE_ATOMIC_ADD", "1"),)  # Marlin has a rule of its own
    third = fold(judge(cured.model_copy(update={"env": (*first.env, *second.env)})))
    assert (third.flags, third.env, third.rejected_by) == ((), (), ())


def test_limits_are_the_tightest() -> None:
    facts = situation(
        VLLM_AUTO,
        engine_version="0.32.0",
        memory_fraction=0.92,
        driver="580.173.02",
        kernel_os="6.17.0-1031-nvidia",
        features=(),
    )
    verdict = fold(judge(facts))
    assert {"xid43-util", "cuda-free-cap-102"} <= {finding.rule.id for finding in verdict.required_by}
    assert verdict.limits.memory_fraction == 0.83
    assert verdict.limits.context is None


def test_penalties_multiply_by_metric() -> None:
    facts = situation(VLLM_AUTO, engine_version="0.24.0", features=("moe",), quant="nvfp4", cuda_graphs=False)
    verdict = fold(judge(facts.model_copy(update={"model": "unsloth/Qwen3.6-35B-A3B-NVFP4"})))
    assert verdict.factor("decode_tps") == pytest.approx(0.4 * 0.84)
    assert verdict.factor("ttft") == 1.0


def test_a_penalty_without_a_factor_explains_and_changes_nothing() -> None:
    verdict = fold(judge(situation(SGLANG_27B, engine_version="0.5.12 re-tag", speculation="ngram")))
    assert "sglang-ngram-low-accept" in {finding.rule.id for finding in verdict.penalties}
    assert verdict.factor("decode_tps") == 1.0


def requiring(rule_id: str, severity: str, **then: Any) -> Rule:
    base = RULES["util-092-default"]
    return base.model_validate(
        base.model_dump(exclude={"when", "then", "example"})
        | {"id": rule_id, "severity": severity, "when": {"engine": "vllm"}, "then": {"do": "require", **then}}
        | {"example": {"fires": {"engine": "vllm"}, "silent": {"engine": "sglang"}}}
    )


def test_of_two_requirements_the_worse_severity_wins() -> None:
    slow = requiring("slow-one", "slow", flags=("--a=1", "--b"), env={"X": "1"})
    garbage = requiring("garbage-one", "garbage", flags=("--a=2",), env={"X": "2"})
    verdict = fold(judge(RuleContext(engine="vllm"), (slow, garbage)))
    assert verdict.flags == ("--a=2", "--b")
    assert verdict.env == (("X", "2"),)


@pytest.mark.parametrize(
    ("given", "required", "merged", "overridden"),
    [
        ((), ("--a=1", "--b"), ("--a=1", "--b"), ()),
        (("--a", "1"), ("--a=1",), ("--a", "1"), ()),
        (("--a", "1", "--c", "x", "y"), ("--a=2",), ("--c", "x", "y", "--a=2"), ("--a",)),
        (("--a_b=1",), ("--a-b=2",), ("--a-b=2",), ("--a-b",)),
        (("--c",), (), ("--c",), ()),
    ],
)
def test_flags_are_merged_by_name(
    given: tuple[str, ...], required: tuple[str, ...], merged: tuple[str, ...], overridden: tuple[str, ...]
) -> None:
    assert merge_flags(given, required) == (merged, overridden)
    assert merge_flags(merged, required) == (merged, ())


def test_rejections_carry_rule_and_source() -> None:
    verdict = fold(judge(situation(SGLANG_27B, engine_version="0.5.12 re-tag", speculation="nextn")))
    (first, *_) = [
        one for one in rejections(verdict, "SGLang · NEXTN") if one.rule == "sglang-eagle-prealloc-oom"
    ]
    assert first.what == "SGLang · NEXTN"
    assert "before the weights" not in first.reason
    assert "92 of 112 GB" in first.reason
    assert first.source.startswith("field report 001")
    assert first.source.endswith("and 1 more")


def test_a_rule_explains_itself() -> None:
    text = explain_rule("sglang-eagle-prealloc-oom")
    assert text.startswith("sglang-eagle-prealloc-oom\n")
    for part in (
        "92 of 112 GB",
        "engine sglang · engine_version 0.5.12 re-tag",
        "fails:",
        "NGRAM",
        "one report",
        "issues/6875",
    ):
        assert part in text


@pytest.mark.parametrize("rule_id", sorted(RULES))
def test_every_rule_explains_itself(rule_id: str) -> None:
    rule, text = RULES[rule_id], explain_rule(rule_id)
    assert rule.title in text
    assert all(source in text for source in rule.sources)
    assert all(len(line) == len(line.rstrip()) for line in text.splitlines())


def test_what_is_no_rule_says_why() -> None:
    assert "Withdrawn by its source" in explain_rule("spec-slower-on-stock-026")


def test_an_unknown_rule_gets_a_suggestion() -> None:
    with pytest.raises(
        SparkfleetError, match=r'no rule is called "sglang-eagle-oom"(.|\n)*sglang-eagle-prealloc-oom'
    ):
        explain_rule("sglang-eagle-oom")
    with pytest.raises(SparkfleetError, match="`sparkfleet explain` lists them all"):
        explain_rule("zzz")


class TestUncured:
    """Wrong results that nothing published cures."""

    def test_a_warning_and_an_inferred_cure_are_and_a_published_cure_is_not(self):
        found = {name for name, rule in RULES.items() if rule.is_uncured}
        assert {"glm53-libertaidai-tokens", "tp2-gdn-wrong-output", "vllm-dsa-sm120-kernel"} <= found
        assert all(RULES[name].severity == "garbage" for name in found)
        assert "hybrid-drafter-prefix-cache-wrong-state" not in found

    def test_a_conjecture_and_a_disputed_rule_are_not(self):
        for name in ("mla-stale-topk-buffer", "vllm-dcp-drift", "b12x-tp2-garbage"):
            assert RULES[name].severity == "garbage"
            assert not RULES[name].is_uncured

    def test_a_possible_one_does_not_count(self):
        facts = {"engine": "vllm", "tp": 2.0, "nodes": 2.0, "cuda_graphs": True, "image": "me/vllm:1"}
        sure = fold(judge(situation(VLLM_AUTO, QWEN_35B, facts, engine_version="0.26.0")))
        assert [one.rule.id for one in sure.uncured] == ["tp2-gdn-wrong-output"]
        assert fold(judge(situation(VLLM_AUTO, QWEN_35B, facts, engine_version=None))).uncured == ()

    def test_the_larger_loss_of_a_prefix_counts(self):
        rules = [RULES["hybrid-mtp-prefix-cache-unit"], RULES["prefix-cache-off"]]
        now = situation(QWEN_27B, engine="vllm", engine_version="0.28.0", speculation="mtp")
        part = fold(judge(now, rules)).prefix_lost
        assert (part.prefilled_again, part.loses_prefix) == (2144, False)
        off = fold(
            judge(now.model_copy(update={"flags": ("--no-enable-prefix-caching",)}), rules)
        ).prefix_lost
        assert off.rule.id == "prefix-cache-off"
        assert off.loses_prefix
        assert fold(()).prefix_lost is None
