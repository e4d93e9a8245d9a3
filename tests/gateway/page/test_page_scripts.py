"""The page's scripts on strange fleets, in playwright's own node, before a document that draws nothing."""

import re
import time

import pytest
from page_views import HOUR_S, OPEN, answer, group, node, served

from sparkfleet.gateway.page.fleet_view import EntryView, EventView


def test_a_browser_whose_clock_is_an_hour_off_shows_the_fleets_times(run):
    for off_s in (-HOUR_S, HOUR_S):
        at = time.time() + off_s
        starting = group(state="starting", phase="loading", since=at - 20)
        one = served(starting, state="starting", ready_at=at + 80)
        words = run(OPEN + 'return $("deployments").textContent;', view=answer(at, deployments=(one,)))
        assert re.search(r"loading, [2-4]\d s in this state", words), "a busy machine starts node late"
        assert re.search(r"Expected to be ready in [5-8]\d s", words)


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


def test_recent_requests_have_tokens_times_and_speed(run):
    """The speed is that of the tokens after the first one; a request that failed or came in one piece has none."""
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
        "events": 42,
    }
    failed = {"key": None, "model": None, "status": 404, "error": "no_such_model", "input_tokens": None}
    recent = [
        at | whole | {"first_byte_ms": 250.0, "ms": 2250.0},
        at | whole | {"first_byte_ms": 2249.9, "ms": 2250.0, "events": 0},
        at | failed | {"output_tokens": None, "first_byte_ms": None, "ms": 1.5},
    ]
    assert run(script, view=answer(deployments=(served(group()),)), recent=recent) == [
        ["me", "tiny", "200", "500", "41", "250 ms", "2250 ms", "20.0 tok/s"],
        ["me", "tiny", "200", "500", "41", "2250 ms", "2250 ms", "–"],
        ["–", "/v1/chat/completions", "404 no_such_model", "–", "–", "–", "1.50 ms", "–"],
    ]


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


def test_each_trouble_is_a_line(run):
    view = answer() | {"warnings": ["a full disk", "no copy"], "trouble": "it hangs"}
    assert run(OPEN + 'return $("trouble").textContent;', view=view) == "it hangs\na full disk\nno copy"
