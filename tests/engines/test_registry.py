"""The engines that a deployment can name: each can be launched, and no table by engine lacks one that plans choose."""

from typing import get_args

import pytest

from sparkfleet.engines.registry import ENGINES
from sparkfleet.fleet.knowledge import upstream_news
from sparkfleet.planner.capacity import sizing
from sparkfleet.planner.engine_args.engine_args import EAGER_FLAGS
from sparkfleet.planner.place.drafting import ALIKE
from sparkfleet.planner.types.plan import ENGINE_LABELS
from sparkfleet.specs.deployment import EngineName, PlannedEngine


def test_every_engine_can_be_launched_under_its_name():
    assert list(ENGINES) == list(get_args(EngineName)) == list(ENGINE_LABELS)
    assert [engine.name for engine in ENGINES.values()] == list(ENGINES)


@pytest.mark.parametrize(
    "table", [ALIKE, sizing.KV_SMALL, sizing.BATCH_FLAGS, EAGER_FLAGS, upstream_news.ENGINES]
)
def test_no_table_lacks_an_engine_that_plans_choose(table):
    assert set(table) == set(get_args(PlannedEngine))
