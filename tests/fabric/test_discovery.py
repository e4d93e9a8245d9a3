import pytest

from sparkfleet.fabric.discovery import DiscoveredLinks, FoundLink, RejectedPort, rejection_lines


def found(*links):
    """By what each link joins: two nodes, or one and "switch"."""
    return DiscoveredLinks(
        links=tuple(
            FoundLink(nodes=(one,), switch=other, rails=())
            if other == "switch"
            else FoundLink(nodes=(one, other), rails=())
            for one, other in links
        ),
        findings=(),
    )


@pytest.mark.parametrize(
    ("kind", "links"),
    [
        ("none", []),
        ("direct", ["ab"]),
        ("direct", ["ab", "ba"]),
        ("ring", ["ab", "bc", "ca"]),
        ("mixed", ["ab", "bc"]),
        ("mixed", ["ab", "bc", "ca", "cd"]),
        ("switch", [("a", "switch"), ("b", "switch")]),
        ("mixed", ["ab", ("c", "switch")]),
    ],
)
def test_the_kind_of_a_topology(kind, links):
    assert found(*links).kind == kind


def test_a_finding_has_its_netdev_if_there_is_one():
    assert (
        str(RejectedPort(node="a", netdev="e0", what="is off.", do="Switch it on."))
        == "e0 of a is off. Switch it on."
    )
    assert str(RejectedPort(node="a", netdev="", what="is off.")) == "a is off."


def test_ports_of_one_name_that_are_rejected_for_one_reason_share_a_sentence():
    dark = [RejectedPort(node=node, netdev="e0 and e1", what="have no signal.") for node in "abc"]
    loop = RejectedPort(node="b", netdev="e2", what="is off.", do="On b: switch it on.")
    nodes = [RejectedPort(node=node, netdev="", what="is not known.") for node in "ab"]
    assert rejection_lines([*dark[:2], loop, dark[2], *nodes]) == [
        "e0 and e1 of a, b, c have no signal.",
        "e2 of b is off. On b: switch it on.",
        "a is not known.",
        "b is not known.",
    ]
