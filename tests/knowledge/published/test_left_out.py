"""Published runs of a family can be left out, to see a plan for a model that nobody has run."""

from __future__ import annotations

from sparkfleet.knowledge.models.speculators import drafting_published
from sparkfleet.knowledge.published.evidence import EvidenceLevel, RunKey, evidence
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.knowledge.published.left_out import families_left_out, is_of_family

FAMILY = "moe-sliding-4096x48x256"
RUN = RunKey("mimo-v2.6-flash-rl", FAMILY, "vllm", "dflash", "fp8+mxfp4", 2)


def test_runs_of_a_family_that_is_left_out_are_no_evidence_and_come_back() -> None:
    assert evidence().of(RUN).level is EvidenceLevel.MODEL
    with families_left_out({FAMILY}):
        assert evidence().of(RUN).level >= EvidenceLevel.FAMILY
        assert evidence().of(RUN).beside == ()
    assert evidence().of(RUN).level is EvidenceLevel.MODEL


def test_effects_and_acceptance_of_the_family_go_and_others_stay() -> None:
    whole = factors()
    family = next(key.partition("=")[2] for key in whole.acceptance if key.startswith("family="))
    with families_left_out({family}):
        less = factors()
    for before, after in (
        (whole.effects["decode"], less.effects["decode"]),
        (whole.acceptance, less.acceptance),
    ):
        gone = set(before) - set(after)
        assert gone == {key for key in before if is_of_family(key, frozenset({family}))}
        assert gone
        assert after
    assert less.coefficients == whole.coefficients


def test_a_key_is_of_a_family_by_whole_names() -> None:
    only = frozenset({"dense-5120x64"})
    assert is_of_family("family=dense-5120x64", only)
    assert is_of_family("family+format=dense-5120x64+fp8+mxfp4", only)
    assert is_of_family("tp+family=2+dense-5120x64", only)
    assert not is_of_family("family=dense-5120x640", only)
    assert not is_of_family("engine=dense-5120x64", only)


def test_published_gains_do_not_count_while_a_family_is_left_out() -> None:
    asked = ("google/gemma-4-31B-it", "vllm", "dflash", 7)
    with families_left_out({"any"}):
        said = drafting_published(*asked, requests=1, content="mixed")
    assert (said.gain, said.length) == (None, None)
    after = drafting_published(*asked, requests=1, content="mixed")
    assert (after.gain, after.length) != (None, None), "what was left out is remembered"
