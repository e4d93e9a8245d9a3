"""Plans, sets and measures the rails between the nodes of an inventory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.apply import FabricOutcome, Helper, NotPermitted, Reopen, apply_plan, find_helper
from sparkfleet.fabric.discovery import DiscoveredLinks
from sparkfleet.fabric.link_measurements import LinkMeasurement, UnmeasuredLink, save_measurements
from sparkfleet.fabric.measure import measure_links
from sparkfleet.fabric.netplan import FabricPlan, changes, claims, loose_arp, plan_fabric, unsaved
from sparkfleet.fabric.port_scan import PortScan
from sparkfleet.fabric.probe import look
from sparkfleet.fabric.topology import find_links
from sparkfleet.fleet.session import Session
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channel
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.inventory import Inventory

Helpers = Mapping[str, Helper | NotPermitted]
"""By node: its helper, or the reason why sparkfleet may not change its rails."""


class RailsPlan(NamedTuple):
    """Ports and links as they are, and the plan for them."""

    views: tuple[PortScan, ...]
    found: DiscoveredLinks
    plan: FabricPlan

    def pending(self, node: str, helper: Helper | NotPermitted) -> tuple[str, ...]:
        """Changes to make on a node, a line each; without permission nobody knows if its netplan files have what runs."""
        mine = self.plan.of(node)
        found = next((changes(mine, view) for view in self.views if view.node == node), ())
        if not isinstance(helper, Helper):
            return found
        if not found and helper.backend == "netplan":
            found = unsaved(mine, helper.own, helper.others)
        return (*found, *(loose_arp(mine, helper.loose) if self._is_at_switch(node) else ()))

    def _is_at_switch(self, node: str) -> bool:
        """True if a rail of the node is on a wire with more than one other end."""
        return any(link.switch is not None and node in link.nodes for link in self.found.links)

    def changed(self, helpers: Helpers) -> dict[str, Helper | NotPermitted]:
        """The nodes to change, each with its helper."""
        return {node: helper for node, helper in helpers.items() if self.pending(node, helper)}


async def plan_rails(channels: Mapping[str, Channel]) -> RailsPlan:
    """Find the cables between the nodes, and plan an address for every rail. Changes nothing."""
    views = await look(channels)
    found = find_links(views)
    return RailsPlan(views, found, plan_fabric(found, views))


async def find_helpers(channels: Mapping[str, Channel]) -> Helpers:
    """The helper of every node that may change its rails, or the reason why it may not."""

    async def one(channel: Channel) -> Helper | NotPermitted:
        try:
            return await find_helper(channel)
        except NotPermitted as error:
            return error

    found = await asyncio.gather(*(one(channel) for channel in channels.values()))
    return dict(zip(channels, found, strict=True))


def all_helpers(helpers: Helpers) -> dict[str, Helper]:
    """The helpers of all nodes. Raises NotPermitted, with the commands for every node that lacks one."""
    if missing := [one for one in helpers.values() if isinstance(one, NotPermitted)]:
        raise _together(missing)
    return {name: one for name, one in helpers.items() if isinstance(one, Helper)}


async def deployments_over(session: Session, nodes: Collection[str]) -> tuple[str, ...]:
    """Deployments with a group over several nodes, whose engines speak over the rails of one of `nodes`.

    () if no controller answers.
    """
    try:
        client = await session.find_controller()
    except SparkfleetError:
        return ()
    if client is None:
        return ()
    async with client:
        status = await client.fleet()
    return tuple(
        one.name
        for one in status.deployments
        if any(_speaks_over({rank.node for rank in group.ranks}, nodes) for group in one.groups)
    )


def _speaks_over(ranks: set[str], nodes: Collection[str]) -> bool:
    return len(ranks) > 1 and not ranks.isdisjoint(nodes)


async def set_rails(
    session: Session, plan: FabricPlan, helpers: Mapping[str, Helper], rollback_s: int
) -> None:
    """Set the rails of the nodes in `helpers` as planned; keep the change only if each and its rails work afterwards.

    Raises:
        SparkfleetError: the change was undone, with the reasons.
    """
    reopen = reopener(session.inventory)
    applied = await apply_plan(
        plan, helpers, session.channels, reopen, nodes=helpers.keys(), rollback_s=rollback_s
    )
    if not applied.kept:
        raise undone_error(
            applied,
            means="The rails have their previous addresses.",
            do=_remedy(plan, helpers) if applied.checked else "Mend what is named here, then try again.",
            command="sparkfleet fabric apply",
        )


def _remedy(plan: FabricPlan, helpers: Mapping[str, Helper]) -> str:
    """Remedy for rails that do not pass packets after a change: other netplan files have a say in their settings."""
    claimed = [
        f"{one.node}: {claim}"
        for one in plan.nodes
        if one.node in helpers
        for claim in claims(helpers[one.node].others, (port.netdev for port in one.ports))
    ]
    cables = (
        "Check the cables and the firewalls on the rails (`sudo ufw allow in on NETDEV`), then try again."
    )
    return "\n".join([*claimed, cables])


def reopener(inventory: Inventory) -> Reopen:
    """Opens new connections to the nodes of an inventory."""

    async def reopen(node: str) -> Channel:
        return open_channel(node, inventory.nodes[node])

    return reopen


def undone_error(outcome: FabricOutcome, *, means: str, do: str, command: str) -> SparkfleetError:
    """The error of a change that was reverted, or kept on some nodes only.

    Args:
        outcome: of the change.
        means: consequence of one that was reverted on all nodes.
        do: remedy of that.
        command: makes the change on all nodes.
    """
    if outcome.unconfirmed:
        others = ", ".join(outcome.unconfirmed)
        return SparkfleetError(
            f"The change was kept on {', '.join(outcome.confirmed)}, and not confirmed on {others}.\n"
            + "\n".join(outcome.problems),
            means=f"{others} will have the previous configuration again, unless the confirmation has arrived: until then the"
            " nodes may not reach each other over the rails.",
            do=f"When {others} can be reached, `{command}` again makes the change on all nodes.",
        )
    return SparkfleetError("The change was undone.\n" + "\n".join(outcome.problems), means=means, do=do)


async def measure_rails(
    session: Session, seconds: float
) -> tuple[tuple[LinkMeasurement, ...], tuple[UnmeasuredLink, ...], Path | None]:
    """Measure every rail of the inventory, and keep the numbers for plans.

    Returns them, the links that could not be measured, and the file of the numbers (None if there are none).

    Raises:
        SparkfleetError: the inventory has no links.
        UnreachableError: the head cannot be reached, which may be why a link was not measured.
    """
    inventory = session.inventory
    if not inventory.links:
        raise SparkfleetError(
            "The inventory has no links.", do="`sparkfleet init` finds the cables and writes them."
        )
    measured, unmeasured = await measure_links(inventory, session.channels, seconds=seconds)
    if unmeasured:
        await session.require_head()
    kept = save_measurements(FleetPaths.default(inventory.fleet).links, measured) if measured else None
    return measured, unmeasured, kept


def _together(errors: Sequence[NotPermitted]) -> NotPermitted:
    """One error; nodes on which the same commands have to be run share them."""
    alike: dict[str, list[NotPermitted]] = {}
    for error in errors:
        alike.setdefault(error.commands or error.do, []).append(error)
    return NotPermitted(
        "\n".join(error.what for error in errors),
        means=errors[0].means,
        do="\n".join(
            f"Run this once on each of {', '.join(error.node for error in same)}, then try again:\n{commands}"
            if len(same) > 1
            else same[0].do
            for commands, same in alike.items()
        ),
    )
