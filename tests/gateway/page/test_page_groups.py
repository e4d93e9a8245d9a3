"""The page's groups: state, reasons, figures, memory."""

import re

import pytest
from page_views import OPEN, answer, group, node, served

from sparkfleet.gateway.page.fleet_view import BandView, MemoryView
from sparkfleet.units import GIB


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


def test_open_connections_of_a_custom_workload_are_not_shown_as_requests(run):
    script = OPEN + 'return $("summary").textContent + $("deployments").textContent;'
    groups = (group(running=2), group(name="tiny/g1/1", engine="custom", running=1))
    words = run(script, view=answer(deployments=(served(*groups),)))
    assert "requests: 2 running" in words
    assert "requestsnot counted; 1 connection open" in words


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


def test_a_draft_on_its_own_requests_is_shown_with_the_words_for_the_file(run):
    words = "MTP k=3, your traffic: 1.42 tokens per step; for 1.27× in the file: `speculation: none`"
    script = OPEN + 'return [...$("deployments").all()].map((one) => [one.tag, one.textContent]);'
    shown = run(script, view=answer(deployments=(served(group(), speculation=(words,)),)))
    assert ["p", f"speculation: {words.replace('`', '')}"] in shown
    assert ["code", "speculation: none"] in shown
    assert not any(
        "speculation: " in text for _, text in run(script, view=answer(deployments=(served(group()),)))
    )
