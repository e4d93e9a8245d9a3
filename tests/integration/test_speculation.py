"""Speculation through the whole of sparkfleet: what is drafted is accepted, shown, and changes no answer."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import predicted_plan
import pytest
from live_fleet import TINY

from sparkfleet.controlplane.api.client import connect
from sparkfleet.perf.latency.local_acceptance import ENOUGH_STEPS
from sparkfleet.perf.prediction import Band, DepthPrediction

pytestmark = pytest.mark.integration

WAYS = {
    "ngram": "speculation: {method: ngram, tokens: 3}\n",
    "draft": "speculation: {method: draft, tokens: 3, draft: 'builtin:tiny-draft'}\n",
    "eagle3": "speculation: {method: eagle3, tokens: 2, draft: 'builtin:tiny-eagle3'}\n",
    "dflash": "speculation: {method: dflash, tokens: 3, draft: 'builtin:tiny-dflash'}\n",
}
TIERS = {
    "ngram": pytest.mark.full,
    "draft": pytest.mark.full,
    "eagle3": pytest.mark.opt_in,
    "dflash": pytest.mark.opt_in,
}
"""Of methods whose drafts are built: `draft` within a minute, heads within many. `ngram` is proved in every change."""
QUESTIONS = (
    "What is a rail?",
    "What is a group?",
    "A rail is one half of a QSFP cable: one network device. What is a rail?",
)
"""The last is answered in words that it holds itself: that is what `ngram` drafts from."""


@pytest.fixture(scope="module")
def plain(fleet):
    """Its answer without speculation."""
    fleet.apply(fleet.write("tiny.yaml", TINY))
    return [fleet.chat(question) for question in QUESTIONS]


def drafts(fleet):
    """The group's drafted and accepted tokens, once there are any."""
    group = fleet.until(
        lambda: next((g for g in fleet.deployment()["groups"] if g["drafted"]), None), timeout=60
    )
    return group["drafted"], group["accepted"]


def kept_of_requests(fleet, method):
    """The tokens per step of requests are stored within a minute or two, and `describe` shows them."""

    def kept():
        fleet.chat(QUESTIONS[0])
        found = fleet.deployment()["drafts"]
        return next((one for one in found if one["setup"]["speculation"]["method"] == method), None)

    one = fleet.until(kept, timeout=180)
    counts = one["counts"]
    assert (
        0
        < counts["accepted"]
        <= counts["proposed"]
        <= counts["steps"] * one["setup"]["speculation"]["tokens"]
    )
    assert sum(counts["by_position"]) == pytest.approx(counts["accepted"])
    code, out, _ = fleet.run("describe", "tiny")
    assert code == 0
    assert f"{method.upper()} k=" in out
    words = " ".join(out.split())
    assert "your traffic: " in words
    assert " tokens per step over " in words


@pytest.mark.parametrize("method", [pytest.param(method, marks=TIERS.get(method, ())) for method in WAYS])
def test_it_says_the_same_and_its_drafts_are_counted(fleet, plain, method):
    fleet.apply(fleet.write("tiny.yaml", TINY + WAYS[method]))
    assert [fleet.chat(question) for question in QUESTIONS] == plain
    drafted, accepted = drafts(fleet)
    assert 0 < accepted <= drafted
    shown = 'sparkfleet_draft_tokens{deployment="tiny"'
    fleet.until(lambda: shown in fleet.metrics(), timeout=60)
    if method != "ngram":  # its steps are not all counted
        kept_of_requests(fleet, method)


DEPTHS = DepthPrediction(
    published=2.8,
    steps_alone=(60.0, 12.0, 11.0, 10.0, 9.0, 8.0),
    steps_loaded=(60.0, 12.0, 11.0, 10.0, 9.0, 8.0),
    accepted_loaded=2.8,
)
"""Steps per second of a draft that costs more than it can bring: three draft tokens yield four tokens at most, 40 tok/s."""


async def predict_depths(fleet):
    client = await connect(fleet.paths)
    assert client is not None, "no controller answers"
    async with client:
        alone = Band(low=20.0, mid=28.0, high=40.0)
        more = {"decode_tps_per_request": alone, "accepted": 2.8, "depths": DEPTHS}
        await predicted_plan.predict(client, "tiny", 1.0, 1.0, **more)


@pytest.mark.full
def test_the_line_that_describe_has_for_its_requests_can_be_typed(fleet):
    """Nothing is predicted for a CPU, so its plan gets the steps per second of each depth."""
    fleet.apply(fleet.write("tiny.yaml", TINY + WAYS["draft"]))
    asyncio.run(predict_depths(fleet))

    def served():
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fleet.chat, QUESTIONS * 8))
        return max((one["steps"] for one in fleet.deployment()["drafts"]), default=0) >= ENOUGH_STEPS

    fleet.until(served, timeout=900)
    described = " ".join(fleet.ok("describe", "tiny").split())
    assert "(published 2.80)" in described
    words = re.search(r"in the file: `(.*?)`", described)[1]
    assert words == "speculation: none"
    assert "no speculation is faster: `sparkfleet describe tiny`" in fleet.ok("status")
    fleet.apply(fleet.write("tiny.yaml", f"{TINY}{words}\n"))
    assert "in the file" not in fleet.ok("describe", "tiny")
    assert fleet.chat(QUESTIONS[0])


@pytest.mark.opt_in
def test_a_head_that_the_checkpoint_brings_changes_no_answer(fleet):
    alone = TINY.replace("builtin:tiny", "builtin:tiny-mtp")
    fleet.apply(fleet.write("tiny.yaml", alone))
    plain = [fleet.chat(question) for question in QUESTIONS]
    fleet.apply(fleet.write("tiny.yaml", alone + "speculation: {method: mtp, tokens: 1}\n"))
    assert [fleet.chat(question) for question in QUESTIONS] == plain
    drafted, accepted = drafts(fleet)
    assert 0 < accepted <= drafted
    fleet.apply(fleet.write("tiny.yaml", TINY))


@pytest.mark.full
def test_a_model_that_says_nonsense_is_not_served(fleet, plain):
    """The canary reads the model's own probabilities; its health and its metrics say that all is well."""
    code, out, err = fleet.run(
        "apply", "--yes", fleet.write("bad.yaml", TINY.replace("builtin:tiny", "builtin:tiny-corrupt"))
    )
    assert code == 1
    assert "the perplexity of plain English is" in out + err
    assert [fleet.chat(question) for question in QUESTIONS] == plain, "the old one serves on"
    fleet.apply(fleet.write("tiny.yaml", TINY))  # as the session's other tests expect it
