"""A change of rails or of the firewall that one of two nodes does not confirm."""

import json

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.fabric.apply import Helper, change
from sparkfleet.fleet.setup.rails import undone_error
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
