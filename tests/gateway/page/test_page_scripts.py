"""The page's scripts on strange fleets, in playwright's own node, before a document that draws nothing."""

import json
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import playwright
import pytest

from sparkfleet.gateway.page.fleet_view import (
    BandView,
    DeploymentView,
    EventView,
    FleetView,
    GroupView,
    LinkView,
    NodeView,
)
from sparkfleet.units import GIB

NODE = Path(playwright.__file__).parent / "driver" / "node"
STATIC = files("sparkfleet.gateway.page") / "static"
LONG = "x" * 200
HOUR_S = 3600


@pytest.fixture
def run(tmp_path):
    """Runs a script with the page's own and `dom.mjs` beside it; what it returns."""
    for one in STATIC.iterdir():
        if one.name.endswith(".js"):
            text = one.read_text().replace('"/page/', '"./').replace('.js";', '.mjs";')
            (tmp_path / one.name.replace(".js", ".mjs")).write_text(text)
    (tmp_path / "dom.mjs").write_text((Path(__file__).parent / "dom.mjs").read_text())
    html = json.dumps((STATIC / "index.html").read_text())
    head = f'import {{ $, answers, make, requests, tick, timers }} from "./dom.mjs";\nmake({html});\n'
    settled = "const settled = async () => { for (let i = 0; i < 50; i++) await null; };\n"

    def running(script, **given):
        values = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
        body = f"const result = await (async () => {{\n{script}\n}})();\nconsole.log(JSON.stringify(result));"
        (tmp_path / "test.mjs").write_text(head + settled + values + body + "\nprocess.exit(0);\n")
        done = subprocess.run(
            [NODE, str(tmp_path / "test.mjs")], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return running


def node(name, **fields):
    known = {"joined": True, "memory_total": 120 * GIB, "memory_available": 60 * GIB}
    return NodeView(name=name, **(known | fields))


def served(*groups, **fields):
    fields = {"name": "tiny", "state": "ready", "generation": 1, "since": 1.0} | fields
    return DeploymentView(groups=groups, **fields)


def group(**fields):
    return GroupView(**({"name": "tiny/g1/0", "state": "ready", "since": 1.0, "node": "a"} | fields))


def answer(at=1000.0, admin=False, stale_s=0.0, **fields):
    """As the gateway answers `/api/fleet`."""
    view = FleetView(at=at, fleet="home", sparkfleet="1", **fields).model_dump(mode="json")
    return view | {"stale_s": stale_s, "reader": None, "admin": admin, "capture_until": None}


PICTURE = """
const { picture } = await import("./draw.mjs");
const drawn = picture(view, new Map(), room);
const texts = drawn.all().filter((one) => one.tag === "text").map((one) => one.textContent);
return { tag: drawn.tag, box: drawn.getAttribute("viewBox"), texts };
"""
OPEN = """
answers["/api/fleet"] = [200, view];
answers["/api/requests"] = [200, { requests: [] }];
await import("./page.mjs");
await settled();
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
    assert found["texts"].count("60.0 GiB of 120.0 GiB free") == 64


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


def test_a_browser_whose_clock_is_an_hour_off_shows_the_fleets_times(run):
    for off_s in (-HOUR_S, HOUR_S):
        at = time.time() + off_s
        starting = group(state="starting", phase="loading", since=at - 20)
        one = served(starting, state="starting", ready_at=at + 80)
        words = run(OPEN + 'return $("deployments").textContent;', view=answer(at, deployments=(one,)))
        assert "loading, 20 s in this state" in words or "loading, 21 s in this state" in words
        assert "Expected to be ready in 8" in words or "Expected to be ready in 79 s" in words


def test_a_group_without_a_token_counter_has_no_speed(run):
    words = 'const words = () => [$("summary").textContent, $("deployments").textContent, $("picture").textContent].join();'
    script = (
        OPEN
        + words
        + """
    const first = words();
    view.at += 2; view.deployments[0].groups[0].tokens += 40; await tick(); await settled();
    const second = words();
    view.at += 2; view.deployments[0].groups[0].tokens = null; await tick(); await settled();
    return [first, second, words()];
    """
    )
    view = answer(nodes=(node("a"),), deployments=(served(group(tokens=5.0)),))
    first, second, third = run(script, view=view)
    assert "20.0 tok/s" in second
    for one in (first, third):
        assert "– tok/s" in one
        assert "0.00" not in one


def test_markup_is_text(run):
    nasty = "<img src=x onerror=alert(1)>"
    event = EventView(id=1, at=1.0, deployment="", subject=nasty, kind=nasty, message=nasty)
    view = answer(nodes=(node(nasty),), events=(event,), deployments=(served(detail=nasty, name=nasty),))
    script = (
        OPEN
        + 'return [document.body.all().filter((one) => one.tag === "img").length, $("events").textContent];'
    )
    count, words = run(script, view=view)
    assert count == 0
    assert nasty in words


def test_events_of_another_day_have_a_date(run):
    script = 'const { clock } = await import("./draw.mjs"); return [clock(Date.now() / 1000), clock(86400 * 20000)];'
    today, before = run(script)
    assert "24" in before
    assert "24" not in today.replace(":24", "")


def test_a_key_that_is_revoked_meanwhile_takes_everything_from_sight_and_opens_the_field_once(run):
    script = (
        OPEN
        + """
    const before = [$("picture").textContent, $("manage").hidden];
    answers["/api/fleet"] = [401, {}];
    await tick(); await settled();
    const shown = ["picture", "deployments", "models", "events", "manage-list", "log"];
    const after = shown.map((id) => $(id).textContent).join("");
    const opened = $("key-form").hidden;
    $("key-form").hidden = true;
    await tick(); await settled();
    const [summary, trouble] = [$("summary").textContent, $("trouble").textContent];
    return { before, after, hidden: $("manage").hidden, opened, again: $("key-form").hidden, summary, trouble };
    """
    )
    view = answer(admin=True, nodes=(node("a"),), deployments=(served(group()),))
    found = run(script, view=view)
    assert "a" in found["before"][0]
    assert found["before"][1] is False
    assert (found["after"], found["hidden"], found["opened"], found["again"]) == ("", True, False, True)
    assert found["summary"] == "Waiting for an API key."
    assert "API key" in found["trouble"]


def test_an_endpoint_that_is_away_leaves_what_was_shown_with_its_time(run):
    script = (
        OPEN
        + """
    answers["/api/fleet"] = [0, {}];
    await tick(); await settled();
    const limited = requests.every(([, , signal]) => signal instanceof AbortSignal);
    return [$("trouble").textContent, $("deployments").textContent, limited, timers.length];
    """
    )
    trouble, shown, limited, timers = run(script, view=answer(time.time(), deployments=(served(group()),)))
    assert trouble.startswith("The endpoint does not answer. What is shown is from ")
    assert "tiny" in shown
    assert limited, "an endpoint that never answers stopped the page for good"
    assert timers == 1


def test_without_any_answer_of_the_controller_the_summary_says_so(run):
    view = {"version": 1, "trouble": "The controller does not answer.", "stale_s": None}
    assert run(OPEN + 'return $("summary").textContent;', view=view) == "The fleet has not been read yet."


def test_a_key_that_no_header_takes_is_not_sent(run):
    script = (
        OPEN
        + """
    $("key").value = "sk-sf-…";
    await $("key-form").dispatch("submit");
    await settled();
    return [$("trouble").textContent, requests.some(([, headers]) => headers.authorization)];
    """
    )
    words, sent = run(script, view=answer())
    assert words.startswith("This is no API key")
    assert not sent


def test_what_does_not_change_is_not_drawn_again(run):
    """Text in it can be selected; a screen reader hears of faults, not of each new rate."""
    script = (
        OPEN
        + """
    const [row, card, spoken] = [$("events").children[0], $("deployments").children[0], $("spoken").textContent];
    view.at += 2; view.deployments[0].groups[0].running = 3; await tick(); await settled();
    const same = [$("events").children[0] === row, $("deployments").children[0] === card, $("spoken").textContent];
    view.nodes[0].joined = false; view.deployments[0].state = "failed"; await tick(); await settled();
    return [same, spoken, $("spoken").textContent, document.title];
    """
    )
    event = EventView(id=1, at=1.0, deployment="", subject="a", kind="node", message="joined")
    view = answer(nodes=(node("a"),), events=(event,), deployments=(served(group()),))
    same, before, after, title = run(script, view=view)
    assert same == [True, False, ""]
    assert (before, after) == ("", "1 node away, 1 deployment failed")
    assert title == "⚠ sparkfleet home"


def test_the_focus_stays_on_a_button_that_is_drawn_again(run):
    script = (
        OPEN
        + """
    $("drain-a").focus();
    await $("drain-a").click();
    view.at += 2; await tick(); await settled();
    $("confirm-yes").focus();
    view.nodes[0].drained = true;
    answers["/api/nodes/a/drain"] = [502, "<html>Bad Gateway</html>"];
    await $("confirm").close("yes"); await settled();
    return [document.activeElement === $("manage-list").parent, document.activeElement.id, $("manage-result").textContent];
    """
    )
    fallback, focused, result = run(script, view=answer(admin=True, nodes=(node("a"),)))
    assert fallback or focused == "drain-a"
    assert result == "HTTP 502"


def test_a_prompt_is_not_sent_twice_at_once(run):
    script = (
        OPEN
        + """
    $("key").value = "sk-sf-1"; await $("key-form").dispatch("submit"); await settled();
    $("models").all().find((one) => one.tag === "input").checked = true;
    $("run").disabled = true;
    await $("try").dispatch("submit"); await settled();
    return requests.filter(([path]) => path.startsWith("/v1")).length;
    """
    )
    assert run(script, view=answer(deployments=(served(group()),))) == 0


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
