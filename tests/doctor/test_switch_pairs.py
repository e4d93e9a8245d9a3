"""One cause on several pairs of nodes at a switch."""

import pytest

from sparkfleet.doctor.findings import Finding, Severity
from sparkfleet.doctor.report import DoctorReport, lines
from sparkfleet.doctor.switch_pairs import common_causes


def finding(pair, what="", severity=Severity.ERROR, check="rail-bandwidth"):
    """Of a pair of numbers of nodes; without words it has no fault."""
    subject = f"spark{pair[0]}–spark{pair[1]} over switch"
    words = what.format(subject) if what else subject
    return Finding(
        id=check, severity=severity if what else Severity.OK, scope="link", subject=subject, what=words
    )


RING = [(1, 2), (2, 3), (3, 4), (4, 1)]
SLOW = "rail 1 of {} gives 13.2 Gb/s"


def causes(**bad):
    """(the pairs, the words) of each cause, of four nodes at a switch."""
    words = bad.get("words", {})
    found = common_causes(finding(pair, words.get(pair, "")) for pair in RING)
    return [([one.subject.partition(" ")[0] for one in cause.findings], cause.words) for cause in found]


def test_two_pairs_with_one_node_are_its_cable():
    """A slow rail of one of eight was two errors and two warnings on two links, with two nodes each."""
    ((pairs, words),) = causes(words={(2, 3): SLOW, (3, 4): SLOW})
    assert pairs == ["spark2–spark3", "spark3–spark4"]
    assert words.startswith("The same on spark3–spark4. spark3 is in both: its cable")


def test_all_pairs_are_the_switch():
    ((pairs, words),) = causes(words=dict.fromkeys(RING, "rail 1 of {}: packets of 9000 bytes do not pass"))
    assert len(pairs) == 4
    assert words.startswith("The same on spark2–spark3, spark3–spark4, spark4–spark1. All pairs at switch")


@pytest.mark.parametrize(
    "words",
    [
        {(1, 2): SLOW},
        {(1, 2): SLOW, (3, 4): SLOW},
        {(1, 2): SLOW, (2, 3): SLOW.replace("rail 1", "rail 2")},
    ],
    ids=["one", "no node in both", "another rail"],
)
def test_others_have_no_common_cause(words):
    assert causes(words=words) == []


def test_a_direct_cable_and_a_node_are_no_pair_at_a_switch():
    one = finding((1, 2), SLOW)
    assert list(common_causes([one.model_copy(update={"subject": "spark1–spark2"})] * 2)) == []


def test_the_report_has_it_once():
    found = [
        finding(pair, SLOW if pair in {(2, 3), (3, 4)} else "", check=check)
        for pair in RING
        for check in ("rail-bandwidth", "rails-balanced")
    ]
    shown = [line for _, line in lines(DoctorReport.of("home", found))]
    assert [line for line in shown if "13.2" in line] == [
        "  error   rail 1 of spark2–spark3 over switch gives 13.2 Gb/s   [rail-bandwidth]",
        "  error   rail 1 of spark2–spark3 over switch gives 13.2 Gb/s   [rails-balanced]",
    ]
    assert sum("spark3 is in both" in line for line in shown) == 2
