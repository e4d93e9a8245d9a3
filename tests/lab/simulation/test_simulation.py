"""The simulation: what has to hold under random faults holds, a seed replays, and a broken rule is found."""

import random
import re
from types import SimpleNamespace

import pytest
from simulation_seeds import NEVER, seed_with

from sparkfleet.controlplane import controller, fleet_queries, gateway_control
from sparkfleet.controlplane.observed_fleet import ObservedFleet
from sparkfleet.controlplane.policy import decide as policy
from sparkfleet.controlplane.policy import fallback
from sparkfleet.controlplane.policy.actions import RetireGroup
from sparkfleet.controlplane.policy.ladder import step
from sparkfleet.controlplane.policy.rolling_update import RollingUpdate
from sparkfleet.controlplane.policy.state import FleetState
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.tables.deployments import DeploymentTable
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.store_lock import StoreLock
from sparkfleet.lab.simulation import faults, serve, store_place, users
from sparkfleet.lab.simulation import fleet as simulated_fleet
from sparkfleet.lab.simulation.checks import invariants
from sparkfleet.lab.simulation.faults import FAULTS, RACES
from sparkfleet.lab.simulation.fleet import MEMORY, SMALL_MEMORY, SimulatedEngine, SimulatedFleet
from sparkfleet.lab.simulation.plans import random_plan
from sparkfleet.lab.simulation.run import simulate
from sparkfleet.lab.simulation.timeline import Timeline
from sparkfleet.lab.simulation.world import ServeFailedError
from sparkfleet.units import GIB


@pytest.mark.parametrize(("seed", "nodes"), [(7, 2), (2, 3), (3, 4)])
def test_the_invariants_hold(seed, nodes):
    report = simulate(seed, hours=1.0, nodes=nodes)
    assert report.violations == []
    assert report.hours == pytest.approx(4.0, abs=0.1)
    assert len(report.faults) > len(FAULTS) / 2
    assert report.ends.total() > 3


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_the_invariants_hold_for_hundreds_of_hours(nodes):
    failed = {seed: found for seed in range(1000, 1025) if (found := simulate(seed, 3.0, nodes).violations)}
    assert failed == {}


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "hours", "nodes", "fault_every_s"),
    [
        (803188613, 3.0, 3, 60.0),  # a neighbour fell to a rung on the node, which has no room any more
        (588107618, 24.0, 5, 180.0),  # the older generation, for which the new one waited, ended a moment ago
        # A group that served while its successor started took its node down again and again, and nobody counted.
        (426374087, 24.0, 5, 180.0),
        (426374088, 24.0, 5, 180.0),
        # A new generation waited for a gone node, because a group that it carried over served.
        (836176719, 24.0, 5, 180.0),
        (603257695, 3.0, 3, 20.0),  # an older group goes on, because the one that replaces it is given up
    ],
)
def test_a_seed_that_once_broke_an_invariant_holds(seed, hours, nodes, fault_every_s):
    assert (
        simulate(seed, hours, nodes, fault_every_s, drain_every_s=NEVER, race_every_s=NEVER).violations == []
    )


def test_the_invariants_hold_on_unequal_nodes_with_deployments_on_demand():
    assert simulate(0, 0.5, 2, demand_every_s=300.0, small=1).violations == []


def test_a_node_of_64_gb_has_less_memory():
    fleet = SimulatedFleet(("spark1", "spark2"), Timeline(), small=("spark2",))
    assert fleet.free("spark1") - fleet.free("spark2") == MEMORY - SMALL_MEMORY


def test_a_seed_replays_exactly():
    one, two = simulate(7, hours=0.5), simulate(7, hours=0.5)
    assert (one.log, one.rounds, one.ends) == (two.log, two.rounds, two.ends)
    assert simulate(8, hours=0.5).log != one.log


@pytest.mark.full
def test_a_controller_that_does_not_notice_a_clock_that_was_set_back_is_found(monkeypatch):
    async def nothing(self):
        pass

    given = {"hours": 3.0, "nodes": 2, "fault_every_s": 120.0, "race_every_s": NEVER}
    with monkeypatch.context() as patch:
        patch.setattr(controller.Controller, "_notice_clock", nothing)
        seed = seed_with("", (25, *range(60)), **given)
    assert simulate(seed, **given).violations == []


def test_a_group_that_stays_at_a_rung_which_it_has_left_is_found(monkeypatch):
    """Serve refuses the first deployment at each lower rung, after that is stored."""
    kinds = {"rung does not start", "engine died", "applied"}
    monkeypatch.setattr(faults, "FAULTS", {k: v for k, v in FAULTS.items() if k in kinds})
    refused = set()
    deploy = serve.SimulatedServe.deploy

    async def second(self, order):
        group = (order.deployment, order.generation, order.replica)
        if group in self.apps and (group, order.rung) not in refused:
            refused.add((group, order.rung))
            raise ServeFailedError("Serve does not answer")
        await deploy(self, order)

    monkeypatch.setattr(serve.SimulatedServe, "deploy", second)
    assert simulate(4, 1.0, drain_every_s=NEVER, race_every_s=NEVER).violations == []
    refused.clear()
    monkeypatch.setattr(policy, "RULES", tuple(r for r in policy.RULES if r.__name__ != "follow_rungs"))
    (found,) = simulate(4, 1.0, drain_every_s=NEVER, race_every_s=NEVER).violations
    assert "has run at another rung than the stored one" in found


def test_older_groups_that_end_before_their_turn_are_found(monkeypatch):
    """On nodes that hold two large groups, of which an edit of two replicas ends one after the other."""
    monkeypatch.setattr(simulated_fleet, "MEMORY", 80 * GIB)
    ends = RollingUpdate.ends

    def all_at_once(self, grants):
        found = [*ends(self, grants)]
        return [RetireGroup(group=app.group, reason="all") for app in self.replaced] if found else []

    with monkeypatch.context() as patch:
        patch.setattr(RollingUpdate, "ends", all_at_once)
        words = "served and ended, and no desired group that is missing needs their nodes"
        seed = seed_with(words, (17, *range(60)), 3.0)
    assert simulate(seed, 3.0).violations == []


def test_an_engine_that_comes_up_while_a_call_ends_it_is_no_violation():
    """The call cannot be taken back; one that came up before the call is."""
    fleet = SimulatedFleet(("spark1",), Timeline())
    key = ("a", 1, 0)

    def ended(ready_at, asked_at):
        fleet.engines[key] = SimulatedEngine(key, 0, ("spark1",), 1, ready=True, ready_at=ready_at)
        serve.end_for_call(fleet, key, "deployed over", asked_at)
        return fleet.ended[-1][2] in invariants.BY_ACTION

    assert ended(ready_at=1.0, asked_at=2.0)
    assert not ended(ready_at=3.0, asked_at=2.0)


def test_a_group_that_ends_while_the_gateways_send_it_requests_is_found(monkeypatch):
    async def leave(self, group):
        self._fleet.retire(group)
        return True

    assert simulate(1, 3.0, race_every_s=NEVER).violations == []
    monkeypatch.setattr(gateway_control.GatewayControl, "leave", leave)
    assert "was retired while it was in the table" in simulate(1, 3.0, race_every_s=NEVER).violations[0]


def test_a_group_that_serves_and_is_missing_in_a_new_table_is_found(monkeypatch):
    """A controller that had not listed what runs published a table without groups when the first one reported."""
    always = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(ObservedFleet, "is_listed", always, raising=False)
    assert "serves, and a new table does not name it" in simulate(13, 1.0).violations[0]


@pytest.mark.parametrize(("method", "answer"), [("_write", None), ("remove", True)])
def test_a_store_that_forgets_what_was_confirmed_is_found(method, answer, monkeypatch):
    """It has neither the deployment nor its deletion, and everything else agrees with it."""
    monkeypatch.setattr(DeploymentTable, method, lambda *_: answer)
    found = (line for seed in range(3) for line in simulate(seed, hours=0.5).violations)
    assert any("was confirmed as" in line and "and the store has" in line for line in found)


def test_an_older_copy_stays_older_while_it_is_in_the_place(tmp_path):
    """It became equal to the store, a controller worked with it, and what that confirmed was missing (seed 783)."""
    names = ("spark1",)
    place = store_place.StorePlace(Timeline(), names, random.Random(1), tmp_path)
    place.keep_older()
    place.right.deployments.put(*random_plan("a", names, random.Random(1)), "me")
    assert place.put("older")
    place.keep_older()
    with pytest.raises(StoreError):
        place.open()


def test_what_is_stored_otherwise_than_it_was_confirmed_is_forgotten():
    spec, plan = random_plan("a", ("spark1",), random.Random(1))
    one = Desired(spec=spec, plan=plan, generation=1, who="me", since=0.0)
    other = one.model_copy(update={"spec": spec.model_copy(update={"concurrency": spec.concurrency + 1})})
    assert list(invariants.forgotten({"a": one}, {"a": one.model_copy()}, 2.0)) == []
    (line,) = invariants.forgotten({"a": one}, {}, 2.0)
    assert line == "2.0 s: a was confirmed as deleted, and the store has generation 1"
    assert len(list(invariants.forgotten({}, {"a": one}, 2.0))) == 1
    assert len(list(invariants.forgotten({"a": other}, {"a": one}, 2.0))) == 1


def test_an_engine_that_dies_again_and_again_is_found():
    group = ("a", 1, 0)

    def found(count, kind="died", working_since=0.0):
        failures = [(100.0 + number, kind, group, 0) for number in range(count)]
        return list(invariants.crashes_on(SimpleNamespace(failures=failures), 200.0, working_since))

    assert found(invariants.DEATHS + 1)
    assert found(invariants.FAILED_STARTS + 1, "did not start")
    assert found(invariants.DEATHS) == found(invariants.FAILED_STARTS, "did not start") == []
    assert found(invariants.DEATHS + 1, working_since=110.0) == [], "the controller did not work yet"


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "hours", "drain_every_s"),
    [
        (350363007, 3.0, 600.0),  # the controller waits for its store
        (607523186, 12.0, 3600.0),  # the node is the head; between two such starts the engine was ready
    ],
)
def test_a_start_that_takes_its_node_down_while_nobody_can_count_it_breaks_no_invariant(
    seed, hours, drain_every_s
):
    """Ray Serve goes on without a controller."""
    assert simulate(seed, hours, 3, 60.0, drain_every_s=drain_every_s, race_every_s=NEVER).violations == []


@pytest.mark.full
def test_a_ready_engine_outlives_an_actor_that_is_lost_before_it_adopts_it():
    """The head was restarted, the actor that was to adopt the engine killed, and the next rung ended the engine."""
    assert simulate(702924041, 12.0, 3, 60.0, race_every_s=NEVER).violations == []


@pytest.mark.full
def test_starts_of_an_older_group_are_counted_by_a_controller_to_which_it_has_not_reported():
    """It was started again without end: each controller ended the attempt that the one before had stored."""
    assert simulate(738042884, 3.0, 5, 180.0, race_every_s=NEVER).violations == []


def raced_often(seed):
    return simulate(seed, hours=1.0, race_every_s=120.0)


def heads_lost(seed):
    """Nothing happens but that the head is lost and moved, and that people apply."""
    never = dict.fromkeys(("fault_every_s", "drain_every_s", "race_every_s"), NEVER)
    return simulate(seed, hours=4.0, head_every_s=1800.0, **never)


def test_with_a_head_that_is_lost_and_moved_the_invariants_hold():
    reports = [heads_lost(seed) for seed in range(3)]
    assert [report.violations for report in reports] == [[], [], []]
    lines = [line for report in reports for line in report.log]
    assert any("the head is moved from spark1 to" in line for line in lines)
    assert any("the head is moved from" in line and "from spark1" not in line for line in lines), "and on"


def test_a_group_that_waits_for_a_former_head_is_found(monkeypatch):
    without = tuple(rule for rule in policy.RULES if rule.__name__ != "leave_gone_nodes")
    monkeypatch.setattr(policy, "RULES", without)
    found = [line for seed in range(3) for line in heads_lost(seed).violations]
    assert any(re.search(r"waits for \['spark\d'\]", line) for line in found)


def only(monkeypatch, race):
    monkeypatch.setattr(faults, "RACES", {race: RACES[race]})


def test_with_two_controllers_and_a_serve_that_is_slow_or_fails_the_invariants_hold():
    reports = [raced_often(seed) for seed in range(3)]
    assert [report.violations for report in reports] == [[], [], []]
    assert all(sum(report.faults[race] for report in reports) > 5 for race in RACES)
    assert any("its store is in use" in line for report in reports for line in report.log)


def test_a_controller_that_acts_beside_another_is_found(monkeypatch):
    only(monkeypatch, "controller replaced while its process lives")
    monkeypatch.setattr(StoreLock, "take", lambda _: None)
    assert "process 1 of the controller acts beside process 2" in raced_often(0).violations[0]


def test_two_plans_from_one_generation_that_are_both_applied_are_found(monkeypatch):
    put = DeploymentTable.put

    def unchecked(*given, base=None):
        return put(*given)

    only(monkeypatch, "two applied from one generation")
    monkeypatch.setattr(DeploymentTable, "put", unchecked)
    assert re.search("two plans from generation . of . were applied", raced_often(0).violations[0])


def test_starts_and_ends_of_groups_that_serve_refuses_are_tried_again(monkeypatch):
    only(monkeypatch, "calls of Serve fail")
    failed = []

    async def deploy(self, order, real=serve.SimulatedServe.deploy):
        try:
            await real(self, order)
        except ServeFailedError:
            failed.append(order.name)
            raise

    monkeypatch.setattr(serve.SimulatedServe, "deploy", deploy)
    assert [simulate(seed, 1.0, race_every_s=60.0).violations for seed in (2, 3, 4)] == [[], [], []]
    assert len(failed) > 5


def drained_often(seed, hours):
    return simulate(seed, hours=hours, fault_every_s=120.0, drain_every_s=600.0, race_every_s=NEVER)


def test_with_nodes_that_are_drained_again_and_again_the_invariants_hold():
    reports = [drained_often(seed, 1.5) for seed in range(2)]
    assert [report.violations for report in reports] == [[], []]
    assert sum(report.faults["node drained"] for report in reports) > 10
    assert any("undrained" in line for report in reports for line in report.log)


WITHOUT = {
    "nothing bars a start": (fleet_queries, "barred_by", lambda state, nodes: "", "was started on"),
    "the ladder ignores drained nodes": (fallback, "step", lambda *given: step(*given[:3]), "took rung"),
    "nothing leaves a drained node": (FleetState, "is_barred", lambda state, group: False, "waits for"),
}


@pytest.mark.full
@pytest.mark.parametrize("mistake", WITHOUT)
def test_a_policy_that_starts_or_stays_on_drained_nodes_is_found(mistake, monkeypatch):
    where, name, replacement, words = WITHOUT[mistake]
    monkeypatch.setattr(where, name, replacement)
    monkeypatch.setattr(users, "MOVES", 0.0)  # the command ends before it moves anything: more waits
    found = (line for seed in (12, 11, 0, 1, 26, 28) for line in drained_often(seed, 3.0).violations)
    assert any(words in line and "drained" in line for line in found)


def test_a_store_that_is_used_without_its_guard_is_found(monkeypatch):
    """A missing, foreign or older one is then taken for what is to run, and live engines are ended."""
    monkeypatch.setattr(store_place, "judge", lambda *_: None)
    kinds = {"store away", "store of another fleet", "store is an older copy"}
    monkeypatch.setattr(faults, "FAULTS", {k: v for k, v in FAULTS.items() if k in kinds})
    found = (line for seed in range(4) for line in simulate(seed, hours=1.0).violations)
    assert any("was ready, well and wanted, and was ended" in line for line in found)


def test_stores_in_the_wrong_place_end_no_engine(monkeypatch):
    kinds = {one for one in FAULTS if one.startswith("store")} | {"controller killed", "applied"}
    assert len(kinds) == 6
    monkeypatch.setattr(faults, "FAULTS", {k: v for k, v in FAULTS.items() if k in kinds})
    for seed in range(4):
        report = simulate(seed, hours=1.0)
        assert report.violations == []
        assert {one for one in kinds if one.startswith("store")} <= report.faults.keys()
