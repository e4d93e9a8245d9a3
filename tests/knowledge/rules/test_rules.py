from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.engine_flags import engines_with
from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.knowledge.rules.rules import (
    RULES_FILE,
    Book,
    Require,
    Rule,
    RuleLimits,
    doctor_rules,
    load_book,
    load_rules,
    planning_rules,
)
from sparkfleet.knowledge.rules.rules_page import render
from sparkfleet.knowledge.versions import Truth
from sparkfleet.planner.rules.judgement import fold, judge
from sparkfleet.planner.rules.rule_text import explain_rule

HERE = Path(__file__).parent
KNOWN_ISSUES = (HERE / "known_issues.txt").read_text().split()
RULES = load_rules()

examples = st.sampled_from(
    [(rule, one) for rule in RULES for one in (*rule.example.fires, *rule.example.silent)]
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_fires_in_its_examples_only(rule: Rule) -> None:
    assert [rule.applies(situation) for situation in rule.example.fires] == [Truth.YES] * len(
        rule.example.fires
    )
    assert [rule.applies(situation) for situation in rule.example.silent] == [Truth.NO] * len(
        rule.example.silent
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_fires_for_no_other_reason_than_its_conditions(rule: Rule) -> None:
    """Without any one of the facts that it asks about, it is not certain any more."""
    for situation in rule.example.fires:
        for condition in rule.when:
            fact = dict.fromkeys(("image_name", "image_tag", "image_tag_name"), "image").get(
                condition.fact, condition.fact
            )
            assert rule.applies(situation.model_copy(update={fact: None})) is Truth.UNKNOWN


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_silent_on_a_cpu(rule: Rule) -> None:
    for situation in rule.example.fires:
        assert rule.applies(situation.model_copy(update={"device": "cpu"})) is Truth.NO


@given(examples, st.data())
def test_knowing_less_never_gives_another_answer(
    example: tuple[Rule, RuleContext], data: st.DataObject
) -> None:
    rule, situation = example
    known = [name for name, value in situation if value is not None]
    forgotten = data.draw(st.sets(st.sampled_from(known)))
    less = situation.model_copy(update=dict.fromkeys(forgotten))
    assert rule.applies(less) in {Truth.UNKNOWN, rule.applies(situation)}


def test_rules_travel_between_processes() -> None:
    assert all(rule.applies(situation) is Truth.YES for rule in RULES for situation in rule.example.fires)
    assert pickle.loads(pickle.dumps(RULES)) == RULES


def test_every_known_issue_is_a_rule_or_has_a_reason() -> None:
    assert len(KNOWN_ISSUES) == 136
    covered = {rule.issue_id for rule in RULES} | dict(load_book().not_rules).keys()
    assert set(KNOWN_ISSUES) - covered == set()


def test_an_issue_without_a_rule_is_a_known_one() -> None:
    assert set(dict(load_book().not_rules)) <= set(KNOWN_ISSUES)


def test_ids_are_unique_and_parts_of_an_issue_name_it() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert all(rule.issue in KNOWN_ISSUES for rule in RULES if rule.issue)


def test_rules_that_name_another_rule_name_one_that_exists() -> None:
    ids = {rule.id for rule in RULES}
    texts = [text for rule in RULES for text in (rule.against, rule.remedy.note, rule.remedy.alternative)]
    named = {name for text in texts for name in re.findall(r"\brule ([a-z0-9]+(?:-[a-z0-9]+)+)", text)}
    assert named
    assert named <= ids


def test_contradicting_evidence_has_versions_on_both_sides() -> None:
    rules = {rule.id: rule for rule in RULES}
    broken, fixed = rules["fp4-cutlass-garbage"], rules["fp4-cutlass-fixed-later"]
    nvfp4 = RuleContext(engine="vllm", quant="nvfp4", features=("moe",))
    old = nvfp4.model_copy(update={"engine_version": "0.19.0"})
    new = nvfp4.model_copy(update={"engine_version": "0.27.1"})
    cutlass, marlin = {"moe_backend": "flashinfer_cutlass"}, {"moe_backend": "marlin"}
    assert broken.applies(old.model_copy(update=cutlass)) is Truth.YES
    assert broken.applies(new.model_copy(update=cutlass)) is Truth.NO
    assert fixed.applies(old.model_copy(update=marlin)) is Truth.NO
    assert fixed.applies(new.model_copy(update=marlin)) is Truth.YES


def test_planning_and_doctor_rules_share_all_rules_out() -> None:
    assert set(planning_rules()) | set(doctor_rules()) == set(RULES)
    assert not set(planning_rules()) & set(doctor_rules())


def test_planning_rules_need_no_fact_of_a_node_check() -> None:
    first_read = list(RuleContext.model_fields).index("unaccounted_gb")
    read_on_nodes = set(list(RuleContext.model_fields)[first_read:])
    assert {rule.id for rule in planning_rules() if set(rule.facts) & read_on_nodes} == set()


def test_required_flags_are_flags() -> None:
    required = [rule.then.flags for rule in RULES if isinstance(rule.then, Require)]
    assert all(re.fullmatch(r"--[a-z][a-z0-9-]*(=\S+)?", flag) for flags in required for flag in flags)


def test_flags_of_a_rule_are_those_of_its_engine() -> None:
    """A build of somebody's own, which a rule names by its image, may have further ones."""
    for rule in RULES:
        asked = {word.partition("=")[0] for one in rule.when if one.fact == "flags" for word in one.wanted}
        assert all(map(engines_with, asked)), rule.id
        engines = {word for one in rule.when if one.fact == "engine" for word in one.wanted}
        if isinstance(rule.then, Require) and not any(one.fact.startswith("image") for one in rule.when):
            for flag in rule.then.flags:
                assert engines <= set(engines_with(flag.partition("=")[0])), f"{rule.id}: {flag}"


def test_the_page_in_docs_is_up_to_date() -> None:
    page = HERE.parents[2] / "docs" / "rules.md"
    assert page.read_text() == render(load_book()), (
        "Run: python -m sparkfleet.knowledge.rules.rules_page > docs/rules.md"
    )


RULE = """
version: 1
sources: {{lab: a lab}}
rules:
- id: {id}
  title: t
  symptom: s
  when: {when}
  then: {then}
  severity: {severity}
  blast: engine
  confidence: single
  remedy: {remedy}
  sources: {sources}
  date: "2026-05"
  example: {example}
not_rules: {left_out}
"""

GOOD = {
    "id": "a-rule",
    "when": "{engine: vllm}",
    "then": "{do: reject}",
    "severity": "fails",
    "remedy": "{note: n}",
    "sources": '[lab, "https://example.org/1"]',
    "example": "{fires: {engine: vllm}, silent: {engine: sglang}}",
    "left_out": "{}",
}


def book(**changes: str) -> Book:
    return RULES_FILE.read(RULE.format(**(GOOD | changes))).book


def test_a_rule_as_it_is_written() -> None:
    (rule,) = book().rules
    assert rule.sources == ("a lab", "https://example.org/1")  # names are written out
    assert rule.applies(RuleContext(engine="vllm")) is Truth.YES


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"id": "A rule"}, "rules.yaml: A rule: id: "),
        ({"when": "{}"}, "a-rule: when: expected a mapping of facts"),
        ({"when": "{engin: vllm}"}, "a-rule: when: engin: not a fact"),
        ({"when": "{engine_version: 0.19}"}, "a-rule: when: engine_version: expected text in quotes"),
        ({"then": "{do: explode}"}, "a-rule: then: "),
        ({"then": "{do: penalise, factor: 1.5}"}, "a-rule: then.penalise.factor: "),
        ({"then": "{do: require}"}, "a-rule: then.require: expected flags, env"),
        ({"then": "{do: require, env: {A: 1}}"}, "a-rule: then.require.env.0.1: "),
        ({"severity": "bad"}, "a-rule: severity: "),
        ({"remedy": "{}"}, "a-rule: remedy: expected at least one remedy"),
        ({"sources": "[]"}, "a-rule: sources: expected at least one source"),
        ({"sources": "[somewhere]"}, "a-rule: sources: somewhere is neither an address nor listed"),
        ({"example": "{fires: {engine: vllm}}"}, "a-rule: example.silent: "),
        ({"example": "{fires: {engine: vlm}, silent: {}}"}, "a-rule: example.fires.0.engine: "),
        ({"example": "{fires: [], silent: {}}"}, "a-rule: example.fires: "),
        ({"left_out": "{a-rule: no}"}, "not_rules: a-rule: "),
        ({"left_out": "{a-rule: because}"}, "a-rule: is listed under rules and under not_rules"),
    ],
)
def test_a_wrong_rule_is_named(changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(SpecError, match=re.escape(complaint).replace(r"\ ", " ")):
        book(**changes)


def test_a_rule_does_not_fire_if_its_exception_holds() -> None:
    (rule,) = book(when="{engine: vllm}\n  unless: [{image: '*anemll*'}, {tp: 4, nodes: 4}]").rules
    assert rule.applies(RuleContext(engine="vllm", image="anemll/x:1")) is Truth.NO
    assert rule.applies(RuleContext(engine="vllm", image="", tp=2.0)) is Truth.YES
    assert rule.applies(RuleContext(engine="vllm", image="", tp=4.0)) is Truth.UNKNOWN
    assert rule.facts == ("engine", "image", "tp", "nodes")


DISPUTED = [
    rule for rule in RULES if rule.contradicted is not None and rule.confidence in ("single", "conjecture")
]


@pytest.mark.parametrize("rule", DISPUTED, ids=lambda rule: rule.id)
def test_a_rule_whose_single_source_is_contradicted_is_never_a_rejection(rule: Rule) -> None:
    for situation in rule.example.fires:
        verdict = fold(judge(situation, [rule]))
        assert (verdict.rejected_by, verdict.required_by, verdict.penalties) == ((), (), ())
        assert verdict.flags == ()
        assert verdict.limits == RuleLimits()
        assert [one.rule.id for one in (*verdict.warnings, *verdict.doubts)] == [rule.id]


@pytest.mark.parametrize("rule", DISPUTED, ids=lambda rule: rule.id)
def test_a_disputed_rule_is_shown_with_both_sources(rule: Rule) -> None:
    newer = rule.contradicted
    assert newer is not None
    for text in (rule.dispute, explain_rule(rule.id)):
        assert rule.sources[0] in text
        assert newer.sources[0] in text


def test_several_sources_are_not_outweighed_by_one() -> None:
    rejecting = next(one for one in RULES if one.confidence == "multi" and one.then.do == "reject")
    newer = DISPUTED[0].contradicted
    contradicted = rejecting.model_copy(update={"contradicted": newer})
    assert not contradicted.is_disputed
    assert fold(judge(rejecting.example.fires[0], [contradicted])).rejected


def test_an_older_source_contradicts_nothing() -> None:
    older = {"says": "it works for everybody", "sources": ("somebody",), "date": "2025-01"}
    with pytest.raises(ValidationError, match="is older than the rule"):
        Rule.model_validate(DISPUTED[0].model_dump() | {"contradicted": older})
