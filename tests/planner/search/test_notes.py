"""Notes on a candidate."""

import pytest
from model_configs import CONFIGS
from planning_values import choice

from sparkfleet.checkpoints.checkpoint_reader import checkpoint_from_config
from sparkfleet.planner.packing.fleet_planner import plan_fleet

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


@pytest.mark.parametrize(("dtype", "is_noted"), [("float32", True), ("bfloat16", False)])
def test_weights_of_32_bits_are_noted_with_both_sizes(sparks, ask, dtype, is_noted):
    name = "Qwen/Qwen3-8B"
    model = checkpoint_from_config({**CONFIGS[name], "torch_dtype": dtype}, id=name)
    found = choice(plan_fleet((ask(name),), sparks(1), {name: model})).notes
    wide = "stored in 32 bits and loaded in 16: 33 GB on disk, 16 GB in memory"
    assert (wide in found) == is_noted
