"""Plans the firewall of every node, which closes the fleet's ports to other machines, and loads it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.apply import Helper, NotPermitted, change
from sparkfleet.fabric.firewall import (
    ADDRESSES,
    FirewallRequest,
    addresses,
    closed_to_others,
    firewall_request,
    is_loaded,
    rails_of,
)
from sparkfleet.fleet.setup.rails import Helpers, all_helpers, find_helpers, reopener, undone_error
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.remote.channel import Channel
from sparkfleet.specs.inventory import Inventory


class FirewallPlan(NamedTuple):
    """The helper of every node, and its rules; an empty request removes them."""

    helpers: Helpers
    requests: Mapping[str, FirewallRequest]

    def differs(self, node: str) -> bool:
        """True if the loaded table is not the planned one. A table that cannot be read counts as different."""
        helper = self.helpers[node]
        return not isinstance(helper, Helper) or not is_loaded(helper.firewall, self.requests[node])

    @property
    def pending(self) -> tuple[str, ...]:
        """Nodes that have to be changed."""
        return tuple(node for node in self.requests if self.differs(node))


async def plan_firewall(
    inventory: Inventory, channels: Mapping[str, Channel], *, opened: Sequence[int], remove: bool
) -> FirewallPlan:
    """The rules of every node; ports of `opened` stay open to every machine. Changes nothing.

    Raises:
        SparkfleetError: the addresses of a node cannot be read, so that the rules would cut it off.
    """
    helpers = await find_helpers(channels)
    requests = {node: {} for node in channels} if remove else await _requests(inventory, channels, opened)
    return FirewallPlan(helpers, requests)


async def _requests(
    inventory: Inventory, channels: Mapping[str, Channel], opened: Sequence[int]
) -> dict[str, FirewallRequest]:
    answers = await asyncio.gather(*(channel.run(ADDRESSES) for channel in channels.values()))
    known = {
        node: addresses(answer.stdout, rails_of(inventory, node))
        for node, answer in zip(channels, answers, strict=True)
    }
    if unknown := [node for node, found in known.items() if not found]:
        raise SparkfleetError(
            f"The addresses of {', '.join(unknown)} could not be read.",
            means="A firewall without them would cut the nodes off from each other.",
            do=f"Run `{' '.join(ADDRESSES)}` there.",
        )
    return {node: firewall_request(inventory, node, known, opened) for node in channels}


def firewall_helpers(plan: FirewallPlan, *, remove: bool) -> dict[str, Helper]:
    """The helpers of all nodes.

    Raises:
        NotPermitted: sparkfleet may not change a node.
        SparkfleetError: a node has no nftables, which rules need.
    """
    granted = all_helpers(plan.helpers)
    if without := [node for node, helper in granted.items() if not (helper.nft or remove)]:
        raise SparkfleetError(
            f"{', '.join(without)}: nftables are not installed.",
            do="Run there: sudo apt-get install nftables",
        )
    return granted


async def load_firewall(
    inventory: Inventory,
    plan: FirewallPlan,
    helpers: Mapping[str, Helper],
    channels: Mapping[str, Channel],
    rollback_s: int,
) -> tuple[str, ...]:
    """Load the rules on the nodes that differ; keep them only if every node can be reached. Returns these nodes.

    Raises:
        SparkfleetError: the change was undone, with the reasons.
    """

    async def reached(_: Mapping[str, Channel]) -> list[str]:
        return []  # the new connections are the check

    requests = {node: plan.requests[node] for node in plan.pending}
    done = await change(
        ("firewall", requests),
        helpers,
        channels,
        reopener(inventory),
        check=reached,
        rollback_s=rollback_s,
    )
    if not done.kept:
        raise undone_error(
            done,
            means="The nodes have their previous rules.",
            do="Check that each node can be reached, then try again.",
            command="sparkfleet fabric firewall --apply",
        )
    return tuple(requests)


async def closed_now(channel: Channel, request: FirewallRequest) -> tuple[str, ...]:
    """Listening sockets of a node that the rules close to other machines."""
    sockets = ReadSockets.parse((await channel.run(ReadSockets.argv)).stdout)
    return tuple(closed_to_others(sockets, request))


def not_permitted(plan: FirewallPlan, node: str) -> str:
    """The reason why sparkfleet may not change a node; "" if it may."""
    helper = plan.helpers[node]
    return helper.what if isinstance(helper, NotPermitted) else ""


def loaded(plan: FirewallPlan, node: str) -> str:
    """The table that is loaded on a node; "" if there is none, or it cannot be read."""
    helper = plan.helpers[node]
    return helper.firewall if isinstance(helper, Helper) else ""
