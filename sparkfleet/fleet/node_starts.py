"""Starts and stops Ray and the controller on all nodes of a fleet, and waits for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sparkfleet.controlplane.api.api_models import ApplyRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.api.client_errors import Held
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError, NodeError, SparkfleetError
from sparkfleet.fleet.events import FactFound, FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.fleet.node_programs import NodePrograms
from sparkfleet.fleet.nodes.node_set import other_nodes
from sparkfleet.fleet.nodes.surroundings import NodeSurroundings, require_free, surroundings_of
from sparkfleet.node_daemon.service_manager import SESSION
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

BOOT_S = 180.0
JOIN_S = 90.0


class TakenDown(Value):
    """A fleet after `down`."""

    was_up: bool
    """False if no node was in the fleet: nothing was stopped."""
    has_run: bool
    """True if the head has a store."""
    deployments: dict[str, int] | None
    """Generation of each deployment that `up` starts again; None: not known, because the store cannot be read."""


class FleetLifecycle:
    """Start and end of one fleet."""

    def __init__(self, access: NodeAccess, programs: NodePrograms) -> None:
        self._access = access
        self._programs = programs
        self.left_by_a_reboot: tuple[str, ...] = ()
        """Nodes started by `bring_up` that have neither systemd nor cron, and stay down after a reboot."""
        self.ended_by_a_logout: tuple[str, ...] = ()
        """Nodes started by `bring_up` whose systemd ends what runs there with the user's last login."""

    @property
    def _inventory(self) -> Inventory:
        return self._access.inventory

    def _others(self) -> list[str]:
        return [name for name in self._inventory.nodes if name != self._inventory.head]

    async def bring_up(
        self,
        apply: Sequence[ApplyRequest],
        on_event: OnEvent = ignored,
        wheels: Path | None = None,
        joined: Collection[str] = (),
    ) -> FleetClient:
        """Start Ray on every node and the controller on the head, and wait until all of them run.

        Ctrl-C ends the waiting only. Another node that cannot be started, or reached, keeps none from being up.

        Args:
            apply: deployments to apply at once.
            wheels: directory from which nodes without internet install.
            joined: nodes that are part of the fleet: their Ray goes on, and only their files are written again.

        Raises:
            NodeError: the head cannot be reached, or sparkfleet cannot be installed on a node: nothing was started. Or
                some of the others could not be started: the first one's error, with all names.
            ControlError: the fleet did not come up, or a node did not join it. Or what runs has a Python that a node lacks:
                nothing was started.
        """
        require_free(self._inventory, await surroundings_of(self._inventory, self._access.channels))
        programs = self._programs
        in_use = await programs.version_in_use() if joined else ""
        pythons = await programs.pythons(on_event, wheels)
        _require_same_python(in_use, {name: one for name, one in pythons.items() if name not in joined})
        prepared = await programs.prepare(apply)
        on_event(StepRunning(step=FleetStep.STARTING_RAY))
        others = self._others()
        head, *answers = await asyncio.gather(
            programs.start_head(apply),
            *(
                programs.join(name, programs.joining(name, prepared, joined=name in joined))
                for name in others
            ),
            return_exceptions=True,
        )
        if isinstance(head, BaseException):
            raise head
        failed = {
            name: one for name, one in zip(others, answers, strict=True) if isinstance(one, BaseException)
        }
        if error := next((one for one in failed.values() if not isinstance(one, SparkfleetError)), None):
            raise error
        begun = {self._inventory.head: head} | {
            name: one for name, one in zip(others, answers, strict=True) if not isinstance(one, BaseException)
        }
        if begun_by := head.get("begun_by"):
            on_event(FactFound(line=f"{begun_by} is starting this fleet already; this waits for that start."))
        self.left_by_a_reboot = tuple(name for name, one in begun.items() if not one["comes_back"])
        self.ended_by_a_logout = tuple(name for name, one in begun.items() if one["comes_back"] == SESSION)
        address = await self.until_up(head["outcome"], on_event)
        client = FleetClient(address, prepared.api_token, reach=self._access.reach)
        await self.until_joined(client, on_event, without=failed)
        if failed:
            raise _not_started(failed, tuple(begun))
        return client

    async def until_up(self, result: str, on_event: OnEvent, node: str | None = None) -> HeadAddress:
        """Waits for the outcome of a head's start, a file on it. Raises ControlError if it does not come up."""
        channel = self._access.channels[node or self._inventory.head]
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < BOOT_S:
            on_event(StepRunning(step=FleetStep.STARTING_RAY))
            try:
                answer = json.loads(await channel.read(result))
            except NodeError:
                await asyncio.sleep(0.1)
                continue
            if "error" in answer:
                raise ControlError(**answer["error"])
            return HeadAddress.model_validate_json(json.dumps(answer))
        raise ControlError(
            f"The fleet did not come up within {BOOT_S:.0f} s.",
            do=f"Look at the logs beside {result} on {channel.node}.",
        )

    async def until_joined(
        self, client: FleetClient, on_event: OnEvent, held_s: float = 0.0, without: Collection[str] = ()
    ) -> None:
        """Wait until Ray on every node is part of the fleet.

        Args:
            client: of the controller; not entered.
            held_s: seconds for which the controller may still wait for its store.
            without: nodes that are not waited for.

        Raises:
            Held: it waits for longer.
            ControlError: a node did not join.
        """
        began = asyncio.get_running_loop().time()
        async with client.again() as asking:
            wanted = set(self._inventory.nodes).difference(without)
            while missing := sorted(wanted - await _joined(asking, began + held_s)):
                on_event(StepRunning(step=FleetStep.JOINING, subjects=tuple(missing)))
                if asyncio.get_running_loop().time() - began > JOIN_S:
                    troubles = await asyncio.gather(*map(self._programs.ray_trouble, missing))
                    reasons = [f"Ray reports: {one}." for one in troubles if one]
                    raise ControlError(
                        f"{', '.join(missing)} did not join the fleet within {JOIN_S:.0f} s.",
                        means="\n".join(
                            [
                                *reasons,
                                "The other nodes are up; no group is started on those that are missing.",
                            ]
                        ),
                        do="`sparkfleet doctor` looks for the cause; `sparkfleet up` tries again.",
                    )
                await asyncio.sleep(0.2)

    async def joined(self, client: FleetClient) -> dict[str, bool]:
        """Nodes that are part of the fleet; True for each whose next start lacks nothing. `client` is not entered.

        False for the head after a `down` that did not end: its controller keeps every group stopped.

        Raises ControlError if the fleet was started with other nodes than those of the inventory.
        """
        async with client.again() as asking:
            status = await asking.fleet()
        if (error := other_nodes(self._inventory, status)) is not None:
            raise error
        stopped = {self._inventory.head} if status.paused else set()
        return {
            node.name: not node.spoilt and node.name not in stopped for node in status.nodes if node.joined
        }

    async def take_down(self) -> TakenDown:
        """Stop everything on every node, the head first, so that it can end the groups in order.

        Another node that cannot be stopped, or reached, keeps none running.

        Raises:
            SparkfleetError: the head could not be stopped, and nothing was; or some of the others could not: the first one's
                error, with all names.
        """
        around = await surroundings_of(self._inventory, self._access.channels)
        require_free(self._inventory, around, verb="stops")
        down = self._programs.down
        names = [self._inventory.head, *self._others()]
        # A head that cannot be reached may work: it would start elsewhere what is stopped on the others.
        ended = [await down(names[0]), *await asyncio.gather(*map(down, names[1:]), return_exceptions=True)]
        failed = {name: one for name, one in zip(names, ended, strict=True) if isinstance(one, BaseException)}
        if failed:
            raise _not_stopped(failed, len(names) - len(failed))
        head = around.get(self._inventory.head, NodeSurroundings())
        return TakenDown(was_up=any(ended), has_run=head.store, deployments=head.generations)


def _require_same_python(in_use: str, missing: Mapping[str, str]) -> None:
    """Raises ControlError if nodes would join a fleet with another minor version of Python.

    Args:
        in_use: the version that runs, such as "3.12"; "" if it is not known.
        missing: interpreters of the nodes that are not in the fleet.
    """
    from sparkfleet.install.environment import python_version  # a slow import, needed to start a fleet only

    others = {name: version for name, one in missing.items() if (version := python_version(one))}
    if in_use and any(version != in_use for version in others.values()):
        version = next(iter(others.values()))
        raise ControlError(
            f"The fleet runs on Python {in_use}, and its nodes have only {version} in common with {', '.join(others)}.",
            means="Ray requires the same minor version on all nodes. Nothing was changed: what runs goes on.",
            do=f"`sparkfleet upgrade` changes all nodes to {version} while engines go on; or install python{in_use} where"
            " it is missing, then `sparkfleet up`.",
        )


def _not_started(failed: Mapping[str, BaseException], up: Sequence[str]) -> BaseException:
    """The error of an `up` that did not start some nodes, by name. `up`: those that are up, the head first."""
    first = next(iter(failed.values()))
    if not isinstance(first, SparkfleetError):
        return first
    names, is_one = ", ".join(failed), len(failed) == 1
    first.means = (
        f"{names} {'is' if is_one else 'are'} missing from the fleet, which is up on {', '.join(up)}. Deployments that need"
        f" {'it' if is_one else 'them'} wait."
    )
    first.do = f"{first.do} Then run `sparkfleet up` again: what runs goes on.".strip()
    return first


def _not_stopped(failed: Mapping[str, BaseException], others: int) -> BaseException:
    """The error of a `down` that did not stop some nodes, by name. `others`: the number of those that it stopped."""
    first = next(iter(failed.values()))
    if not isinstance(first, SparkfleetError):
        return first
    names, is_one = ", ".join(failed), len(failed) == 1
    rest = "The other one is" if others == 1 else f"The other {others} are"
    first.means = f"{names} {'was' if is_one else 'were'} not stopped. {rest} stopped."
    if all(isinstance(one, NodeError) for one in failed.values()):
        first.means += " Nothing runs on a node without power."
        again = f"If {'it does' if is_one else 'they do'} not come back, remove {names} from the inventory."
        first.do = f"{first.do} Then run `sparkfleet down` again. {again}".strip()
    return first


async def _joined(client: FleetClient, held_until: float = 0.0) -> set[str]:
    """Nodes that have joined; none while the controller waits for its store, until then (the event loop's clock)."""
    try:
        return {node.name for node in (await client.fleet()).nodes if node.joined}
    except Held:
        if asyncio.get_running_loop().time() > held_until:
            raise
        return set()
