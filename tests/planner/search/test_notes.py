"""Notes on a candidate."""

import pytest
from planning_values import choice

TARGET, PUBLISHED = "Qwen/Qwen3.6-27B-FP8", "z-lab/Qwen3.6-27B-DFlash"


@pytest.fixture
def notes(sparks, plan, ask):
    """notes(draft): of a plan that names it."""

    def of(draft: str) -> list[str]:
        spec = ask(TARGET, speculation={"method": "dflash", "draft": draft})
        return [one for one in choice(plan(sparks(1), spec)).notes if draft in one]

    return of


@pytest.mark.parametrize(
    "draft", ["z-lab/Qwen3.6-27B-DFlsh", PUBLISHED.lower(), "acme/Qwen3.6-27B-DFlash@main"]
)
def test_a_draft_that_is_like_a_published_one_is_named_with_it(notes, draft):
    """Only its size was doubted, and `apply` found at the Hub that there is none of that name."""
    meant = f"the draft {draft} is not among the published ones; did you mean `draft: {PUBLISHED}`?"
    assert meant in notes(draft)


@pytest.mark.parametrize(
    "draft", [PUBLISHED, f"{PUBLISHED}@main", "acme/heads", "/models/Qwen3.6-27B-DFlash"]
)
def test_no_other_draft_is_doubted(notes, draft):
    assert not [one for one in notes(draft) if "did you mean" in one]
