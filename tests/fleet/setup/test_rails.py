"""A change of rails or of the firewall that one of two nodes does not confirm."""

import json

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.fabric.apply import Helper, NotPermitted, change
from sparkfleet.fabric.discovery import DiscoveredLinks, FoundLink
from sparkfleet.fabric.netplan import FabricPlan, NodePlan, PortPlan
from sparkfleet.fleet.setup.rails import RailsPlan, all_helpers, undone_error
from sparkfleet.remote.channel import Completed


class Node:
    """A node with the helper; `lost_at` is the command at which its connection is lost."""

    def __init__(self, node, lost_at=""):
        self.node, self._lost_at = node, lost_at

    async def run(self, argv, **_):
        if self._lost_at in argv:
            raise NodeError(f"{self.node}: the connection was lost.")
        return Completed(argv=tuple(argv), exit_code=0, stdout=json.dumps({"token": "t"}), stderr="")

    async def close(self):
        pass


async def outcome(lost_at, problems=()):
    nodes = {"a": Node("a"), "b": Node("b", lost_at)}
    helpers = {node: Helper.model_construct(node=node, argv=("helper",)) for node in nodes}

    async def reopen(node):
        return nodes[node]

    async def check(_):
        return list(problems)

    return await change(("apply", {"a": {}, "b": {}}), helpers, nodes, reopen, check=check, rollback_s=90)


def error_of(done):
    return undone_error(done, means="As before.", do="Mend it.", command="sparkfleet fabric apply")


async def test_a_change_that_one_node_has_kept_is_not_reported_as_undone():
    """The others kept the new addresses, and the message was that all have the previous ones."""
    done = await outcome("confirm")
    assert (done.kept, done.confirmed, done.unconfirmed) == (False, ("a",), ("b",))
    error = error_of(done)
    assert error.what.splitlines() == [
        "The change was kept on a, and not confirmed on b.",
        "b: the connection was lost.",
    ]
    assert "`sparkfleet fabric apply` again" in error.do


@pytest.mark.parametrize(("lost_at", "problems"), [("rollback", ["A rail is down."]), ("apply", [])])
async def test_a_change_that_no_node_has_kept_was_undone(lost_at, problems):
    done = await outcome(lost_at, problems)
    assert (done.kept, done.confirmed, done.unconfirmed) == (False, (), ())
    error = error_of(done)
    assert (error.what.splitlines()[0], error.means) == ("The change was undone.", "As before.")


@pytest.mark.parametrize(("switch", "nodes"), [("crs812", ("a",)), (None, ("a", "b"))])
def test_a_rail_that_answers_for_others_is_pending_at_a_switch(switch, nodes):
    """With one cable nobody else is on the wire, and addresses of an owner's own netplan file stay as they are."""
    port = PortPlan(netdev="enp1s0f1np1", address="192.168.100.10/24")
    links = (FoundLink(nodes=nodes, switch=switch, rails=()),)
    planned = RailsPlan(
        views=(),
        found=DiscoveredLinks(links=links, findings=()),
        plan=FabricPlan(nodes=(NodePlan(node="a", ports=(port,)),)),
    )
    strict = Helper(node="a", argv=("rails",), backend="ip", own="", others={})
    loose = strict.model_copy(update={"loose": ("enp1s0f1np1", "enP7s7")})
    assert planned.pending("a", strict) == ()
    assert [line.split(":")[0] for line in planned.pending("a", loose)] == ["enp1s0f1np1"] * (
        switch is not None
    )


def test_nodes_with_the_same_commands_share_them():
    """Eight nodes had the same three commands eight times."""

    def refused(node, commands):
        error = NotPermitted(f"{node}: u may not.", means="One program.", do=f"On {node}:\n{commands}")
        error.node, error.commands = node, commands
        return error

    helpers = {"a": refused("a", "  x"), "b": refused("b", "  y"), "c": refused("c", "  x")}
    with pytest.raises(NotPermitted) as caught:
        all_helpers(helpers)
    assert caught.value.do == "Run this once on each of a, c, then try again:\n  x\nOn b:\n  y"
    assert caught.value.what.count("may not") == 3
