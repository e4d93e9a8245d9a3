import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.engines.advisories import ADVISORIES, advisories_of
from sparkfleet.knowledge.rules.rules import load_rules


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("vllm", "0.12.0", ("CVE-2026-22778", "CVE-2026-22807", "CVE-2026-27893")),
        ("vllm", "0.14.1", ("CVE-2026-27893",)),
        ("vllm", "0.18.0", ()),
        ("vllm", "0.19.0", ("CVE-2026-9540",)),
        ("vllm", "0.28.0", ()),
        ("vllm", "", ()),
        ("vllm", None, ()),
        ("vllm", "0.11.1", ("CVE-2026-22778", "CVE-2026-22807", "CVE-2026-27893", "CVE-2026-22773")),
        ("sglang", "0.5.9", ("CVE-2026-3059", "CVE-2026-3060", "CVE-2026-7669")),
        ("sglang", "0.5.10", ("CVE-2026-7301",)),
        ("sglang", "0.5.12 re-tag", ()),
    ],
)
def test_advisories_of_a_version(engine, version, found):
    assert advisories_of(engine, version) == found


def test_the_plan_warns_of_every_advisory():
    (rule,) = (rule for rule in load_rules() if rule.id == "security-advisory")
    said = " ".join(str(one) for one in rule.when)
    assert all(one.id in said for one in ADVISORIES.content.advisories)


def test_a_wrong_range_is_named():
    with pytest.raises(SpecError, match=r"CVE-2026-9540: versions: "):
        ADVISORIES.read(ADVISORIES.text.replace('versions: "0.19.0"', 'versions: ">=new"'))
