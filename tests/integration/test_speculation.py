"""Speculation through the whole of sparkfleet: what is drafted is accepted, shown, and changes no answer."""

import pytest
from live_fleet import TINY

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


@pytest.mark.parametrize("method", [pytest.param(method, marks=TIERS.get(method, ())) for method in WAYS])
def test_it_says_the_same_and_its_drafts_are_counted(fleet, plain, method):
    fleet.apply(fleet.write("tiny.yaml", TINY + WAYS[method]))
    assert [fleet.chat(question) for question in QUESTIONS] == plain
    drafted, accepted = drafts(fleet)
    assert 0 < accepted <= drafted
    shown = 'sparkfleet_draft_tokens{deployment="tiny"'
    fleet.until(lambda: shown in fleet.metrics(), timeout=60)


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
