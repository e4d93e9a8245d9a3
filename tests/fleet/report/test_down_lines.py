from sparkfleet.fleet.nodes.surroundings import NodeSurroundings
from sparkfleet.fleet.report.down_lines import down_lines


def test_down_with_what_up_brings_back():
    assert list(down_lines("home", NodeSurroundings(generations={"b": 2, "a": 1}))) == [
        "Fleet home is down.",
        "`sparkfleet up` starts it again with a (generation 1), b (generation 2).",
    ]
    start = "`sparkfleet apply FILE` or `sparkfleet up` starts it."
    assert list(down_lines("home", NodeSurroundings(generations={})))[1:] == [start]
    for unknown in (None, NodeSurroundings(store=True)):
        assert "not known" in list(down_lines("home", unknown))[1]
