"""A plan by name alone, for everything that is published."""

import pytest

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError
from sparkfleet.knowledge.known_models import known_checkpoint
from sparkfleet.knowledge.published_checkpoints import load_published


def known(name: str) -> Checkpoint | None:
    try:
        return known_checkpoint(name)
    except FactError:
        return None


PLANNABLE = {one.id: found for one in load_published().values() if (found := known(one.id)) is not None}


@pytest.mark.parametrize("name", PLANNABLE)
def test_each_name_is_placed_or_refused_with_the_true_reason(name, plan, ask, sparks):
    bytes_ = PLANNABLE[name].bytes_on_disk
    for count in (1, 2, 4):
        made = plan(sparks(count, switch=True), ask(name, license_policy="any"))
        (placed,) = made.deployments
        if placed.chosen is not None:
            assert bytes_ < count * 128e9
            return
        assert placed.infeasible is not None
        assert placed.infeasible.what
    # What no four Sparks take is too large for them, or of a kind that nothing is published to run.
    assert bytes_ > 4 * 90e9 or placed.rejected, name
