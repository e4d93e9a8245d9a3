import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.advisories import ADVISORIES, advisories_of
from sparkfleet.knowledge.rules.rules import load_rules


@pytest.mark.parametrize(
    ("engine", "version", "among", "not_among"),
    [
        ("vllm", "0.8.4", {"CVE-2025-30202", "CVE-2025-32444"}, set()),
        ("vllm", "0.8.5", set(), {"CVE-2025-30202", "CVE-2025-32444"}),
        ("vllm", "0.10.2", {"CVE-2025-59425", "CVE-2025-62164", "CVE-2025-66448"}, set()),
        ("vllm", "0.11.0", {"CVE-2025-62164", "CVE-2025-62372", "CVE-2025-62426"}, {"CVE-2025-59425"}),
        ("vllm", "0.11.1", {"CVE-2026-22773", "CVE-2026-56340"}, {"CVE-2025-62164", "CVE-2025-62426"}),
        ("vllm", "0.12.0", {"CVE-2026-22778", "CVE-2026-22807", "CVE-2026-27893"}, {"CVE-2026-22773"}),
        ("vllm", "0.14.1", {"CVE-2026-27893", "CVE-2026-48746"}, {"CVE-2026-22778", "CVE-2026-24779"}),
        ("vllm", "0.19.0", {"CVE-2026-9540", "CVE-2026-48746"}, {"CVE-2026-27893", "CVE-2026-34756"}),
        ("vllm", "0.21.0", {"CVE-2026-48746", "CVE-2026-47155"}, {"CVE-2026-9540"}),
        ("sglang", "0.5.9", {"CVE-2026-3059", "CVE-2026-7302", "CVE-2026-7304"}, {"CVE-2026-7301"}),
        ("sglang", "0.5.10", {"CVE-2026-7301", "CVE-2026-111391"}, {"CVE-2026-3060", "CVE-2026-111392"}),
        ("sglang", "0.5.12 re-tag", {"CVE-2026-86793", "CVE-2026-93034"}, {"CVE-2026-7301"}),
        ("sglang", "0.5.21", {"CVE-2026-111391", "CVE-2026-111392"}, {"CVE-2026-93034"}),
        ("trtllm", "1.1.0", {"CVE-2025-33255", "CVE-2026-24142"}, {"CVE-2025-23254"}),
    ],
)
def test_advisories_of_a_version(engine, version, among, not_among):
    found = set(advisories_of(engine, version))
    assert among <= found
    assert not not_among & found


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.22.0"),
        ("vllm", "0.28.0"),
        ("vllm", ""),
        ("vllm", None),
        ("sglang", "0.5.23"),
        ("trtllm", "1.3.0rc12"),
    ],
)
def test_no_advisory_of_a_version_that_none_affects_or_that_is_not_known(engine, version):
    assert advisories_of(engine, version) == ()


def test_no_plan_takes_a_version_that_a_request_can_take_over():
    rejected = [rule for rule in load_rules() if rule.effect.do == "reject"]
    said = " ".join(str(rule.when) for rule in rejected)
    takeovers = [one.id for one in ADVISORIES.content.advisories if one.effect == "takeover"]
    assert len(takeovers) > 1
    assert all(advisory in said for advisory in takeovers)


def test_the_plan_warns_of_every_advisory():
    (rule,) = (rule for rule in load_rules() if rule.id == "security-advisory")
    said = " ".join(str(one) for one in rule.when)
    assert all(one.id in said for one in ADVISORIES.content.advisories)


def test_a_wrong_range_is_named():
    with pytest.raises(SpecError, match=r"CVE-2026-9540: versions: "):
        ADVISORIES.read(ADVISORIES.text.replace('versions: "0.19.0"', 'versions: ">=new"'))
