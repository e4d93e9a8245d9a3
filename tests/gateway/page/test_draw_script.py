"""Drawings of strange fleets by draw.js: the picture, bands, dials, numbers and times."""

import pytest
from page_views import LONG, answer, group, node, served

from sparkfleet.gateway.page.fleet_view import BandView, LinkView

PICTURE = """
const { picture } = await import("./draw.mjs");
const drawn = picture(view, new Map(), room);
const texts = drawn.all().filter((one) => one.tag === "text").map((one) => one.textContent);
return { tag: drawn.tag, box: drawn.getAttribute("viewBox"), texts };
"""


def test_a_fleet_whose_nodes_have_not_been_read_has_no_picture(run):
    found = run(PICTURE, view=answer(), room=300)
    assert (found["tag"], found["box"]) == ("p", None)


@pytest.mark.parametrize(("room", "columns"), [(288, 1), (1200, 4)])
def test_sixty_four_nodes_are_boxes_in_lines(run, room, columns):
    nodes = tuple(node(f"spark{number}") for number in range(64))
    found = run(PICTURE, view=answer(nodes=nodes), room=room)
    _, _, width, height = map(float, found["box"].split())
    assert width <= max(room, 250) + 20
    assert height > 64 / columns * 100
    assert found["texts"].count("60 GiB of 120 GiB free") == 64


def test_a_long_name_ends_in_its_box_and_its_end_stays(run):
    nodes = (node(LONG, head=True, drained=True),)
    view = answer(nodes=nodes, deployments=(served(group(node=LONG), name=LONG),))
    for text in run(PICTURE, view=view, room=300)["texts"]:
        assert len(text.removesuffix(LONG + " · head · drained")) <= 28 or LONG in text
    assert any(
        text.startswith("xxx") and "… · head · drained" in text
        for text in run(PICTURE, view=view, room=300)["texts"]
    )


def test_a_node_that_does_not_answer_is_not_full(run):
    texts = run(PICTURE, view=answer(nodes=(node("a", memory_available=None),)), room=300)["texts"]
    assert "memory not read: it does not answer" in texts
    assert "free" not in " ".join(texts)


def test_every_cable_is_in_the_picture(run):
    """Those to a switch, and the one that closes a ring of three, were hidden behind boxes."""
    nodes = tuple(map(node, "abc"))
    pairs = (("a", "b"), ("b", "c"), ("a", "c"))
    links = (
        *(LinkView(nodes=pair, rails=2, up=number) for number, pair in enumerate(pairs)),
        LinkView(nodes=("a",), switch="tower", rails=4, up=3),
    )
    texts = run(PICTURE, view=answer(nodes=nodes, links=links), room=1200)["texts"]
    assert {"0 of 2 rails", "1 of 2 rails"} <= set(texts)
    assert {"2 of 2 rails to c", "2 of 2 rails to a", "3 of 4 rails to tower"} <= set(texts)
    below = run(PICTURE, view=answer(nodes=nodes, links=links), room=300)["texts"]
    assert {"0 of 2 rails", "1 of 2 rails", "2 of 2 rails to c"} <= set(below)


def test_what_is_no_number_is_a_dash(run):
    values = '[NaN, null, undefined, Infinity, "7", 0, 123.4]'
    assert run(f'const {{ short }} = await import("./draw.mjs"); return {values}.map(short);') == [
        "–",
        "–",
        "–",
        "–",
        "–",
        "0.00",
        "123",
    ]


def test_events_of_another_day_have_a_date(run):
    script = 'const { clock } = await import("./draw.mjs"); return [clock(Date.now() / 1000), clock(86400 * 20000)];'
    today, before = run(script)
    assert "24" in before
    assert "24" not in today.replace(":24", "")


def test_bands_and_dials_are_drawn_without_a_measurement(run):
    script = """
    const { bandBar, dial } = await import("./draw.mjs");
    const dials = [dial("d", null, null, 0), dial("d", 0, band, 0)];
    const all = [...dials, bandBar("b", "ms", band, null), bandBar("b", "ms", band, undefined)];
    return all.flatMap((one) => one.all()).flatMap((one) => [...one.attributes.values()]).join(" ");
    """
    band = BandView(low=0.0, mid=0.0, high=0.0, provenance="modelled").model_dump()
    words = run(script, band=band)
    assert "NaN" not in words
    assert "undefined" not in words


def test_a_node_with_many_groups_names_the_worst_of_them(run):
    many = [group(name=f"tiny/g1/{index}") for index in range(16)]
    many[12] = group(name="tiny/g1/12", state="failed")
    many[14] = group(name="tiny/g1/14", state="starting")
    texts = run(PICTURE, view=answer(nodes=(node("a"),), deployments=(served(*many),)), room=300)["texts"]
    chips = [text for text in texts if text.startswith("tiny") or "more" in text]
    assert chips == ["tiny · failed", "tiny · starting", *["tiny · – tok/s"] * 5, "9 more, see Deployments"]


def test_nodes_are_spread_evenly_over_the_lines(run):
    """Eight nodes in a room for seven were a line of seven and a line of one."""
    nodes = tuple(node(f"spark{number}") for number in range(8))
    found = run(PICTURE, view=answer(nodes=nodes), room=2368)
    _, _, width, _ = map(float, found["box"].split())
    assert width == 4 * 230 + 3 * 90 + 20


def test_every_figure_of_a_dial_has_its_unit(run):
    script = """
    const { bandBar, dial } = await import("./draw.mjs");
    return [dial("d", 7, band, 0), bandBar("b", "ms", band, 9), bandBar("b", "ms", band, 2)].map((one) => one.textContent);
    """
    dial, outside, inside = run(
        script, band=BandView(low=1, mid=2, high=3, provenance="modelled").model_dump()
    )
    assert dial == "7.00tok/sd"
    assert outside == "b: measured 9.00 ms; predicted 2.00 (1.00 to 3.00), modelled; outside the prediction"
    assert "outside" not in inside
