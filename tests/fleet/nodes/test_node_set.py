"""An inventory with other nodes than the fleet that runs is named at once, with the commands."""

from types import SimpleNamespace

import pytest
from control_values import inventory, plan
from open_client import OpenClient
from statuses import deployment, fleet, rung

from sparkfleet.controlplane.state.status import NodeReport
from sparkfleet.errors import ControlError
from sparkfleet.fleet.deployments.status import fleet_state
from sparkfleet.fleet.lifecycle.bring_up import bring_up
from sparkfleet.fleet.lifecycle.upgrade import plan_upgrade
from sparkfleet.fleet.node_starts import FleetLifecycle
from sparkfleet.fleet.nodes.node_set import other_nodes, require_known_nodes, without_their_nodes
from sparkfleet.planner.types.plan import GroupPlan


def running(*names):
    return fleet(nodes=tuple(NodeReport(name=name, joined=True) for name in names))


def planned(*nodes):
    """A plan with its group on these nodes."""
    return plan().model_copy(update={"groups": (GroupPlan(ladder=(rung(nodes=nodes),)),)})


class Running(OpenClient):
    """A session with this inventory, and the controller of a fleet that was started with `nodes`."""

    def __init__(self, *names, nodes="ab"):
        self.inventory = inventory(*names)
        self.nodes = nodes
        self.lifecycle = FleetLifecycle(SimpleNamespace(inventory=self.inventory), None)

    async def find_controller(self):
        return self

    async def fleet(self):
        return running(*self.nodes)

    async def all_events(self, after):
        return ()


async def test_up_with_a_third_node_names_the_commands_before_it_changes_anything():
    """It waited for 90 s for a node that the controller does not look for, and named `doctor` and `up`."""
    with pytest.raises(ControlError) as caught:
        await bring_up(Running("a", "b", "c"))
    assert caught.value.what == "Fleet home was started with a, b; the inventory has a, b, c."
    assert "c cannot be used yet" in caught.value.means
    assert "`sparkfleet down`, then `sparkfleet up`" in caught.value.do


@pytest.mark.parametrize("names", ["abc", "a"])
async def test_an_upgrade_with_other_nodes_is_refused_before_it_looks_at_them(names):
    """It ended Ray on the inventory's nodes and began with them: one that was taken out kept the former release."""
    with pytest.raises(ControlError, match="Fleet home was started with a, b") as caught:
        await plan_upgrade(Running(*names))
    assert "`sparkfleet down`, then `sparkfleet up`" in caught.value.do


async def test_up_with_the_same_nodes_changes_nothing():
    assert not (await bring_up(Running("a", "b"))).changed


async def test_status_warns_of_a_node_that_left_the_inventory():
    """It was listed as gone, and its alert fired, until somebody guessed that the fleet has to start again."""
    found = await fleet_state(Running("a", "b", nodes="abc"))
    assert found.up
    (warning,) = found.status.warnings
    assert "started with a, b, c; the inventory has a, b." in warning
    assert "c counts as part of it" in warning
    steps = "if c can be reached, put it back into the inventory, `sparkfleet down`, delete it and its links there"
    assert steps in warning
    assert (await fleet_state(Running("b", "a"))).status.warnings == ()


def test_a_controller_that_has_not_looked_yet_is_no_other_fleet():
    assert other_nodes(inventory("a", "b"), running()) is None
    assert other_nodes(inventory("a", "b"), None) is None


def test_only_a_plan_that_uses_a_new_node_is_refused():
    now = running("a", "b")
    require_known_nodes(inventory("a", "b", "c"), now, [planned("a", "b")])
    with pytest.raises(ControlError, match="c cannot be used yet"):
        require_known_nodes(inventory("a", "b", "c"), now, [planned("a"), planned("b", "c")])


def test_deployments_whose_nodes_the_inventory_does_not_have_are_named_by_up():
    """`up` with a renamed node ended with "Up.", and nothing of what was deployed ran."""
    names = {"one": ("a",), "two": ("a", "old"), "three": ("old",)}
    status = fleet(
        *(
            deployment().model_copy(update={"name": name, "plan": planned(*nodes)})
            for name, nodes in names.items()
        )
    )
    assert without_their_nodes(inventory("a", "b"), status) == (
        "two, three do not start: their plans need old, which the inventory does not have."
        " `sparkfleet apply` with their files plans them for the present nodes."
    )
    assert without_their_nodes(inventory("a", "old"), status) == ""


def test_a_stored_plan_on_a_node_that_has_left_is_refused_with_the_way_to_another():
    """A rollback to it waited without end for the free memory of a node that nobody looks for."""
    for nodes in ("ab", "abd"):
        with pytest.raises(ControlError, match="The plan of tiny needs c, which") as caught:
            require_known_nodes(inventory(*nodes), running("a", "b"), [planned("c")])
        assert "`sparkfleet apply` with the file of tiny" in caught.value.do
    require_known_nodes(inventory("a", "b"), running(), [planned("c")])
