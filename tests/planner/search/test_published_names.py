"""A plan by name alone, for everything that is published."""

import pytest

from sparkfleet.checkpoints.arch.weight_parts import Part
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.errors import FactError
from sparkfleet.knowledge.engines.images import images_of
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.models.published_checkpoints import load_published


def known(name: str) -> Checkpoint | None:
    try:
        return known_checkpoint(name)
    except FactError:
        return None


PLANNABLE = {
    one.id: found
    for one in load_published().values()
    if " " not in one.id and (found := known(one.id)) is not None
}


@pytest.mark.parametrize("name", PLANNABLE)
def test_each_name_is_placed_or_refused_with_the_true_reason(name, plan, ask, sparks):
    parts = PLANNABLE[name].bytes_by_part()
    size = sum(parts.values()) - parts.get(Part.MTP, 0)
    for count in (1, 2, 4):
        made = plan(sparks(count, switch=True), ask(name.replace(" ", "@")))  # builds are revisions
        if made.deployments and made.deployments[0].groups:
            choice = made.deployments[0].groups[0].choice.candidate
            (build,) = images_of(choice.image)[-1:]
            is_on_disk = build.disk_tables(PLANNABLE[name].model_type) is not None
            assert size - is_on_disk * PLANNABLE[name].table_bytes < count * 117e9
            return
        (refused,) = made.refused
        assert refused.rejected
    assert size > 4 * 80e9, refused.rejected
