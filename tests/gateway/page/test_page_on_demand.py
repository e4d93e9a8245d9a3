"""Deployments on demand on the page: what each card, each box and each confirmation has of them."""

import time

import pytest
from page_views import OPEN, answer, asleep, group, loaded, node, served

CARDS = OPEN + 'return $("deployments").textContent;'
MEANS = """
await $(button).click();
return $("confirm-means").textContent;
"""
ENDS = "when another one needs its memory"


def card(run, one, **fields):
    return run(CARDS, view=answer(time.time(), deployments=(one.model_copy(update=fields),)))


def means(run, button, *each, nodes=()):
    view = answer(time.time(), admin=True, deployments=each, nodes=nodes)
    return run(OPEN + MEANS, view=view, button=button)


def test_one_that_is_unloaded_has_its_plan_and_the_time_of_its_last_start(run):
    words = card(run, asleep("pilot", start_s=260.0))
    for one in (
        "its next request starts it",
        "vLLM 0.32 · FP8",
        "80 GiB predicted",
        "its last start took4 min",
    ):
        assert one in words
    assert "its last start tooknot known yet" in card(run, asleep("pilot"))


@pytest.mark.parametrize(
    ("use", "queued", "words"),
    [
        ({"waiting_since": 42}, 2, "2 requests wait at the gateway for its start, the first for 4"),
        ({"waiting_since": 42}, 1, "1 request waits at the gateway for its start, the first for 4"),
        ({"waiting_since": 42}, 0, "A request has waited 4"),
        ({"waiting_since": 42, "loaded_by": "boss (page)"}, 0, "boss (page) has waited 4"),
        (
            {"waiting_since": 42, "loaded_by": "boss (page)"},
            1,
            "for its start; 1 request waits at the gateway",
        ),
    ],
)
def test_who_waits_for_a_start_is_named_with_the_seconds(run, use, queued, words):
    """It was "until a group has room; one that comes now would wait about 1 s"."""
    use = use | {"waiting_since": time.time() - use["waiting_since"]}
    shown = card(run, asleep("eyes", **use), queued=queued, wait_s=1)
    assert words in shown
    assert "has room" not in shown


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ({"in_flight": 1, "idle_s": 1800}, f"In use, 1 request in flight: it ends 30 min after the last one, or {ENDS}"),
        ({"in_flight": 2}, f"In use, 2 requests in flight: it ends {ENDS}"),
        ({"unused_since": 3800}, f"No request for 63 min: it ends {ENDS}"),
        ({"unused_since": 380, "ends_at": -520, "idle_s": 900}, "No request for 6 min: it ends in 9 min, at "),
        ({"idle_s": 900}, f"On demand: it ends 15 min after its last request, or {ENDS}"),
    ],
)  # fmt: skip
def test_one_that_is_loaded_has_the_time_of_its_end(run, use, words):
    at = {name: time.time() - use[name] for name in ("unused_since", "ends_at") if name in use}
    assert words in card(run, loaded("small", **(use | at)))


def test_one_that_failed_has_the_command_that_tries_again_once(run):
    detail = "its engine did not start; `sparkfleet describe broken` shows the reason"
    words = card(run, loaded("broken", state="failed"), detail=detail)
    assert words.count("sparkfleet describe broken") == 1
    assert "`" not in words, "commands are code"
    assert "Its requests get a 503, and start nothing, until sparkfleet apply FILE --retry" in words


def test_one_whose_edit_did_not_start_is_used_and_unloaded_as_any_while_the_generation_before_serves(run):
    older = loaded("a", instead=1, in_flight=1).model_copy(update={"state": "failed"})
    words = card(run, older, detail="generation 2 did not start; generation 1 serves")
    assert "generation 2 did not start; generation 1 serves" in words
    assert f"In use, 1 request in flight: it ends {ENDS}" in words
    assert "get a 503" not in words
    assert buttons(run, older)[:3] == ["unload-a", "restart-a", "stop-a"]
    sleeps = asleep("a", instead=1)
    assert buttons(run, sleeps) == ["load-a", "restart-a", "stop-a"], "a restart tries the newer one again"


def test_what_runs_always_has_none_of_it(run):
    words = card(run, served(group()), queued=2, wait_s=3)
    assert "it ends" not in words
    assert "2 requests wait at the gateway until a group has room" in words


def test_the_summary_counts_those_that_are_unloaded(run):
    view = answer(time.time(), deployments=(asleep("a"), loaded("b")))
    assert "1 of 2 deployments ready, 1 unloaded" in run(OPEN + 'return $("summary").textContent;', view=view)


def test_a_prompt_names_that_it_starts_one(run):
    script = (
        OPEN
        + """
    const before = $("models").textContent;
    view.deployments[0].state = "ready";
    await tick(); await settled();
    return [before, $("models").textContent];
    """
    )
    before, after = run(script, view=answer(time.time(), deployments=(asleep("a"), loaded("b"))))
    assert before == " a (unloaded: a prompt starts it) b"
    assert after == " a b"


def buttons(run, one):
    script = (
        OPEN + 'return $("manage-list").all().filter((one) => one.tag === "button").map((one) => one.id);'
    )
    return run(script, view=answer(time.time(), admin=True, deployments=(one,)))


def test_each_state_has_the_changes_that_do_something(run):
    waits = asleep("a", waiting_since=time.time() - 5, loaded_by="boss")
    assert buttons(run, asleep("a")) == ["load-a", "stop-a"]
    assert buttons(run, waits) == ["unload-a", "stop-a"]
    assert buttons(run, loaded("a"))[:3] == ["unload-a", "restart-a", "stop-a"]
    assert buttons(run, loaded("a", state="starting")) == ["unload-a", "restart-a", "stop-a"]
    assert buttons(run, loaded("a", state="failed")) == ["restart-a", "stop-a"]
    assert buttons(run, served(group()))[:2] == ["restart-tiny", "stop-tiny"]


def test_a_load_is_confirmed_with_what_it_takes_and_who_ends_for_it(run):
    others = (
        loaded("coder"),
        loaded("far", node="spark2"),
        loaded("broken", state="failed"),
        served(group(node="spark1")),
    )
    words = means(run, "load-pilot", asleep("pilot", start_s=260.0), *others)
    assert words.startswith(
        "pilot starts with 80 GiB on spark1, as for a request; its last start took 4 min. "
    )
    assert "If memory does not hold both, coder ends for it" in words
    assert "It waits 10 min at most" in words
    assert "Nothing else on demand is loaded there." in means(run, "load-pilot", asleep("pilot"), others[1])
    many = means(run, "load-pilot", asleep("pilot"), loaded("coder"), loaded("eyes"))
    assert "those of coder, eyes that were not used for longest end for it" in many


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            loaded("a", in_flight=3),
            "The 3 requests in flight end first, for at most 10 min. The next request starts",
        ),
        (loaded("a"), "a ends and its memory on spark1 becomes free. No request is in flight."),
        (asleep("a", loaded_by="boss"), "The load by boss is taken back: a starts for a request only."),
    ],
)
def test_an_unload_is_confirmed_with_what_happens_to_requests(run, one, words):
    assert words in means(run, "unload-a", one)


def test_one_that_is_unloaded_frees_no_memory_when_it_is_stopped(run):
    one = asleep("a").model_copy(update={"queued": 2})
    words = means(run, "stop-a", one)
    assert "not loaded, so no memory becomes free" in words
    assert "and so are the 2 that wait now" in words


def test_a_drain_names_the_requests_that_it_lets_wait(run):
    each = (asleep("pilot"), loaded("coder"), loaded("broken", state="failed"))
    words = means(run, "drain-spark1", *each, nodes=(node("spark1"),))
    assert "What runs there stays: coder." in words
    assert "Requests for pilot, which is not loaded, wait until then." in words
