"""The page's scripts on strange fleets, in playwright's own node, before a document that draws nothing."""

import json
import re
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import playwright
import pytest

from sparkfleet.gateway.page.fleet_view import (
    BandView,
    DeploymentView,
    EntryView,
    EventView,
    FleetView,
    GroupView,
    LinkView,
    MemoryView,
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


def test_a_browser_whose_clock_is_an_hour_off_shows_the_fleets_times(run):
    for off_s in (-HOUR_S, HOUR_S):
        at = time.time() + off_s
        starting = group(state="starting", phase="loading", since=at - 20)
        one = served(starting, state="starting", ready_at=at + 80)
        words = run(OPEN + 'return $("deployments").textContent;', view=answer(at, deployments=(one,)))
        assert re.search(r"loading, [2-4]\d s in this state", words), "a busy machine starts node late"
        assert re.search(r"Expected to be ready in [5-8]\d s", words)


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
    assert (before, after) == ("", "1 node gone, 1 deployment failed")
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


def test_a_queue_is_shown_with_its_wait(run):
    script = OPEN + 'return $("summary").textContent + $("deployments").textContent;'
    none, one, many = (
        run(script, view=answer(deployments=(served(group(waiting=2), queued=queued, wait_s=wait_s),)))
        for queued, wait_s in ((0, 0), (1, 7), (12, 45))
    )
    assert "at the gateway" not in none
    assert "requests: 0 running, 2 waiting" in none
    assert "requests: 0 running, 14 waiting" in many, "those at the gateway and those in the engine"
    assert (
        "1 request waits at the gateway until a group has room; one that comes now would wait about 7 s"
        in one
    )
    assert "12 requests wait at the gateway" in many
    assert "about 45 s" in many


def test_recent_requests_have_tokens_times_and_speed(run):
    """The speed is that of the tokens after the first one; a request that failed has none."""
    script = (
        OPEN.replace("{ requests: [] }", "{ requests: recent }")
        + 'return $("requests").children.map((row) => row.children.slice(1).map((cell) => cell.textContent));'
    )
    at = {"at": 1000.0, "path": "/v1/chat/completions", "prompt": None, "answer": None}
    whole = {
        "key": "me",
        "model": "tiny",
        "status": 200,
        "error": None,
        "input_tokens": 500,
        "output_tokens": 41,
    }
    failed = {"key": None, "model": None, "status": 404, "error": "no_such_model", "input_tokens": None}
    recent = [
        at | whole | {"first_byte_ms": 250.0, "ms": 2250.0},
        at | failed | {"output_tokens": None, "first_byte_ms": None, "ms": 1.5},
    ]
    assert run(script, view=answer(deployments=(served(group()),)), recent=recent) == [
        ["me", "tiny", "200", "500", "41", "250 ms", "2250 ms", "20.0 tok/s"],
        ["–", "/v1/chat/completions", "404 no_such_model", "–", "–", "–", "1.50 ms", "–"],
    ]


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


ENTRIES = (
    EntryView(node="b", url="http://10.0.0.2:8000/v1", reached=True, connections=3),
    EntryView(node="head", url="http://10.0.0.3:8000/v1", reached=False),
)
HOME = {"endpoint": "http://10.0.0.1:8000/v1", "nodes": (node("a", head=True), node("b"), node("head"))}
LINES = """
const lines = (id) => $(id).children.map((one) => one.textContent);
"""


def test_every_address_of_the_endpoint_is_shown_with_its_state(run):
    script = OPEN + LINES + 'return [lines("endpoint"), $("spoken").textContent, document.title];'
    lines, spoken, title = run(script, view=answer(entries=ENTRIES, **HOME))
    assert lines == [
        "http://10.0.0.1:8000/v1Copya (head)",
        "http://10.0.0.2:8000/v1Copyb · 3 connections",
        "http://10.0.0.3:8000/v1Copyhead · not reached: use another address",
    ]
    assert spoken == "1 address of the endpoint not reached"
    assert title.startswith("⚠")
    lines, spoken, _ = run(script, view=answer(endpoint="http://127.0.0.1:8000/v1", nodes=HOME["nodes"]))
    (line,) = lines
    assert line == (
        "http://127.0.0.1:8000/v1Copya (head) · reached by programs on it only,"
        " unless the inventory has gateway: {host: 0.0.0.0}"
    )
    assert spoken == ""


@pytest.mark.parametrize(
    ("days", "words", "kind"),
    [(40, "Its certificate is valid for 39 days.", "soft"), (9, "for 8 days", "bad"), (-1, "expired", "bad")],
)
def test_the_end_of_the_certificate_is_shown(run, days, words, kind):
    at = time.time()
    view = answer(at, certificate_expires_at=at + days * 24 * HOUR_S - 60, **HOME)
    script = (
        OPEN
        + 'const one = $("endpoint").children.at(-1); return [one.textContent, one.getAttribute("class")];'
    )
    shown, state = run(script, view=view)
    assert words in shown
    assert state == kind


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("clipboard", "Copied: http://10.0.0.2:8000/v1"),
        ("command", "Copied: http://10.0.0.2:8000/v1"),
        ("none", "Selected: Ctrl+C copies it"),
    ],
)
def test_an_address_is_copied_wherever_the_page_was_opened(run, way, words):
    """Over plain HTTP a browser has no `navigator.clipboard`."""
    script = (
        OPEN
        + """
    const taken = [];
    const clipboard = way === "clipboard" ? { writeText: async (text) => taken.push(text) } : undefined;
    Object.defineProperty(navigator, "clipboard", { value: clipboard });
    let selected = "";
    globalThis.getSelection = () => ({ selectAllChildren: (one) => (selected = one.textContent) });
    document.execCommand = () => way === "command" && taken.push(selected) > 0;
    await $("copy-http://10.0.0.2:8000/v1").click(); await settled();
    return [$("copied").textContent, taken, selected];
    """
    )
    copied, taken, selected = run(script, view=answer(entries=ENTRIES, **HOME), way=way)
    assert copied == words
    assert taken == ([] if way == "none" else ["http://10.0.0.2:8000/v1"])
    assert selected == ("" if way == "clipboard" else "http://10.0.0.2:8000/v1")


def test_addresses_stay_in_place_and_are_gone_with_the_key(run):
    script = (
        OPEN
        + """
    const first = $("endpoint").children[0];
    $("copy-http://10.0.0.2:8000/v1").focus();
    view.at += 2; view.entries[0].connections = 4; await tick(); await settled();
    const kept = [first === $("endpoint").children[0], document.activeElement === $("copy-http://10.0.0.2:8000/v1")];
    answers["/api/fleet"] = [401, {}];
    await tick(); await settled();
    return [kept, $("endpoint").textContent];
    """
    )
    assert run(script, view=answer(entries=ENTRIES, **HOME)) == [[True, True], ""]


@pytest.mark.parametrize(
    ("reader", "admin", "words"),
    [
        (None, False, "Nothing is deployed. sparkfleet apply FILE starts a deployment."),
        ("boss", True, "Nothing is deployed. sparkfleet apply FILE starts a deployment."),
        ("guest", False, "Nothing is deployed that this key may use."),
    ],
)
def test_an_empty_fleet_names_the_command_and_a_guest_is_not_misled(run, reader, admin, words):
    view = answer(admin=admin) | {"reader": reader}
    script = OPEN + 'return ["deployments", "summary", "models"].map((id) => $(id).textContent);'
    shown, summary, models = run(script, view=view)
    assert (shown, models) == (words, "There is none.")
    assert "nothing deployed" in summary


def test_a_fleet_that_a_down_left_half_stopped_is_not_an_empty_one(run):
    shown = run(OPEN + 'return $("deployments").textContent;', view=answer(paused=True))
    assert shown.startswith(
        "The fleet is being taken down, or a sparkfleet down did not end. sparkfleet up starts"
    )


def test_the_first_deployment_can_be_chosen_once_it_comes(run):
    script = (
        OPEN
        + """
    view.deployments.push(later); view.at += 2; await tick(); await settled();
    return [$("models").textContent, $("models").all().filter((one) => one.tag === "input").length];
    """
    )
    later = served(group()).model_dump(mode="json")
    assert run(script, view=answer(), later=later) == [" tiny", 1]


@pytest.mark.parametrize(
    "state", ["barred", "preparing", "starting", "probing", "ready", "draining", "stopped", "failed"]
)
def test_a_group_has_its_name_its_state_and_its_reason(run, state):
    one = served(
        group(state=state, detail="why", model="Qwen/Qwen3-8B", context=32768, slots=4, running=3, waiting=2),
        state="failed",
    )
    words = run(OPEN + 'return $("deployments").textContent;', view=answer(deployments=(one,)))
    assert f"{state} g1/0 · a · Qwen/Qwen3-8B" in words
    assert "why" in words
    assert re.search(r"context32\D?768 tokens", words), (
        "its digits are grouped as the browser's language has it"
    )
    assert "requests3 of 4 running, 2 waiting" in words
    assert "sparkfleet describe tiny has the reason of each attempt" in words


def test_a_rung_has_its_reasons_and_a_plan_that_is_not_known_promises_none(run):
    script = (
        OPEN
        + """
    const found = [];
    for (const [reason, passed] of [["", []], ["fastest that fits", []], ["next", ["out of memory"]]]) {
      Object.assign(view.deployments[0].groups[0], { reason, passed });
      view.at += 2; await tick(); await settled();
      found.push($("fold-tiny/g1/0-plan")?.parent.textContent ?? null);
    }
    return found;
    """
    )
    none, first, second = run(script, view=answer(deployments=(served(group()),)))
    assert none is None
    assert first == "Rung 1 of 1 of its ladder: whyfastest that fits"
    assert second.endswith("whynexta rung above was left: out of memory")


MEMORY = BandView(low=40 * GIB, mid=45 * GIB, high=50 * GIB, provenance="calibrated")


@pytest.mark.parametrize(
    ("held", "predicted", "words"),
    [
        ({"a": 47}, {"memory_bytes": MEMORY}, "memory per rank47 GiB (45 GiB predicted)"),
        ({"a": 47, "b": 46}, {"memory_bytes": MEMORY}, "memory per rank47 GiB on a, 46 GiB on b (45 GiB predicted)"),
        ({"a": 47}, {}, "memory per rank47 GiB"),
        ({}, {"memory_bytes": MEMORY}, "memory per rank45 GiB predicted"),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_the_memory_of_ranks_is_shown_with_its_prediction(run, held, predicted, words):
    memory = tuple(MemoryView(node=name, bytes=gib * GIB) for name, gib in held.items())
    view = answer(deployments=(served(group(memory=memory, predicted=predicted)),))
    named = '.all().filter((one) => one.tag === "dt").map((one) => one.parent.textContent)'
    rows = run(OPEN + f'return $("deployments"){named};', view=view)
    assert [row for row in rows if row.startswith("memory")] == ([words] if words else [])


def test_a_drained_group_is_not_ready(run):
    words = run(
        OPEN + 'return $("deployments").textContent;', view=answer(deployments=(served(group(drained=True)),))
    )
    assert "drained g1/0" in words


def test_many_groups_are_lines_whose_figures_open(run):
    """A card of 16 groups had 16 times all figures: a column of 5,000 px."""
    many = tuple(group(name=f"tiny/g1/{index}", running=index) for index in range(16))
    script = (
        OPEN
        + """
    const folds = () => $("deployments").all().filter((one) => one.tag === "summary").map((one) => one.textContent);
    const details = $("fold-tiny/g1/7-figures").parent;
    details.setAttribute("open", ""); await details.dispatch("toggle");
    view.at += 2; view.deployments[0].groups[7].running = 9; await tick(); await settled();
    return [folds(), $("fold-tiny/g1/7-figures").parent.open, $("fold-tiny/g1/8-figures").parent.open];
    """
    )
    titles, seventh, eighth = run(script, view=answer(deployments=(served(*many),)))
    assert "– tok/s · requests: 5 running, 0 waiting" in titles
    assert (seventh, eighth) == (True, False), "what somebody opened stays open"
    alone = run(OPEN + 'return $("fold-tiny/g1/0-figures");', view=answer(deployments=(served(group()),)))
    assert alone is None


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


def test_each_trouble_is_a_line(run):
    view = answer() | {"warnings": ["a full disk", "no copy"], "trouble": "it hangs"}
    assert run(OPEN + 'return $("trouble").textContent;', view=view) == "it hangs\na full disk\nno copy"


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
