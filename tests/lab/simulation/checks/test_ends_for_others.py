"""Checks of the ends of deployments on demand for others, on one step each."""

import pytest
from demand_world import on_demand

from sparkfleet.lab.simulation.checks.demand_invariants import DemandRecord
from sparkfleet.lab.simulation.checks.ends_for_others import ended_for_nothing, ended_for_others, ended_in_use
from sparkfleet.lab.simulation.clients import ModelUse
from sparkfleet.lab.simulation.controller_processes import MADE_ROOM
from sparkfleet.lab.simulation.fleet import SimulatedEngine
from sparkfleet.lab.simulation.memory_look import MemoryLook
from sparkfleet.lab.simulation.world import World
from sparkfleet.units import GIB

NODE = "spark1"


def wanted(name, gib):
    """A deployment on the node of this world."""
    one = on_demand(name, gib)
    rung = one.plan.groups[0].choice
    shape = rung.candidate.shape.model_copy(update={"nodes": (NODE,)})
    rung = rung.model_copy(update={"candidate": rung.candidate.model_copy(update={"shape": shape})})
    group = one.plan.groups[0].model_copy(update={"ladder": (rung,)})
    return one.model_copy(update={"plan": one.plan.model_copy(update={"groups": (group,)})})


EACH = {one.name: one for one in (wanted("c", 27), wanted("d", 24), wanted("e", 37))}
ENDS = ended_for_others({"d": f"{MADE_ROOM}e"}, EACH)
"""The end of `d`, which holds 24 GiB, for `e`, which needs 37."""


def look(free, at=1000.0):
    """Memory by which that was decided; `d` has been ready since 800.0."""
    key = ("d", 1, 0)
    engine = SimulatedEngine(key, 0, (NODE,), 24 * GIB, began_at=650.0, ready=True, ready_at=800.0)
    free = {NODE: free * GIB}
    return MemoryLook(at, free, {key: engine}, ending=frozenset(), adopted=frozenset(), unplaced=False)


NO_OTHER = {"e": 900.0}
"""Requests wait for `e` alone."""


@pytest.fixture
def found(tmp_path):
    """Violations by that end."""
    world = World(1, 1, tmp_path)
    return lambda free, loads=(), waits=NO_OTHER: list(
        ended_for_nothing(ENDS, EACH, {}, look(free), world, loads=loads, waits=waits)
    )


def test_one_that_is_ended_for_another_that_fits_beside_it_is_found(found):
    assert found(free=30) == []
    assert found(free=54) == ["1000.0 s: d was ended for e, which fits beside it"]
    assert found(free=5) == ["1000.0 s: d was ended for e, which does not fit without all others either"]


def test_memory_of_one_that_is_loaded_in_the_same_step_is_not_free(found):
    """An alarm of the checker (seed 470003): requests for `c` and `e` came at once."""
    assert found(free=54, loads={"c"}) == []
    assert len(found(free=5, loads={"c"})) == 1


@pytest.mark.parametrize(("since", "is_found"), [(800.0, False), (980.0, True)])
def test_memory_that_one_waits_for_which_came_before_is_not_free(found, since, is_found):
    """An alarm of the checker (seed 471002): requests had waited for `c` before, and for the end of something else."""
    assert len(found(free=54, waits={**NO_OTHER, "c": since})) == is_found
    assert len(found(free=84, waits={**NO_OTHER, "c": since})) == 1, "both fit beside it"


@pytest.mark.parametrize(
    ("at", "record", "is_found"),
    [
        (1000.0, DemandRecord(ready_since={"d": 800.0}), False),
        (900.0, DemandRecord(ready_since={"d": 800.0}), True),
        (1000.0, DemandRecord(ready_before={"d": 800.0}), False),
        (900.0, DemandRecord(ready_before={"d": 800.0}), True),
    ],
)
def test_one_that_is_used_serves_for_as_long_as_its_start_took_also_if_it_has_ended_in_this_step(
    at, record, is_found
):
    """An alarm of the checker (seed 470007): calls of Serve were slow, and the engine had ended before it looked."""
    violations = list(ended_in_use(ENDS, {"d": ModelUse(used_at=at)}, look(30, at), record))
    assert violations == [f"{at} s: d is used and was ended for e after 100 s, not 150 s"] * is_found


@pytest.mark.parametrize(("longest_start_s", "is_found"), [(150.0, False), (222.0, True)])
def test_the_start_of_a_group_that_was_replaced_counts_after_its_end(longest_start_s, is_found):
    """Seed 480102: the policy forgot that start with the group, and the checker soon after, when its engine had ended."""
    record = DemandRecord(ready_since={"d": 800.0}, longest_start_s={"d": longest_start_s})
    violations = list(ended_in_use(ENDS, {"d": ModelUse(used_at=960.0)}, look(30, 960.0), record))
    assert violations == ["960.0 s: d is used and was ended for e after 160 s, not 222 s"] * is_found
