"""Runs sparkfleet's program on the nodes of a fleet: one verb of `node_daemon/node_cli.py` at a time."""

from __future__ import annotations

import asyncio
import errno
import getpass
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError

from sparkfleet.controlplane.api.api_models import (
    ApplyRequest,
    JoinRequest,
    MoveRequest,
    Prepared,
    SecretsRequest,
    UpgradeRequest,
    UpgradeStep,
    UpRequest,
)
from sparkfleet.controlplane.api.store_request import OnNode, StoreRequest
from sparkfleet.errors import SURROUNDINGS, ControlError, NodeError, SparkfleetError
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.fleet.events import FleetStep, OnEvent, StepRunning, ignored
from sparkfleet.fleet.node_access import NodeAccess, json_answer
from sparkfleet.remote.channel import Completed
from sparkfleet.runtime.node_command import node_command
from sparkfleet.specs.fields import escape
from sparkfleet.specs.inventory import Inventory

RUN_S = 60.0
DOWN_S = 180.0


_RAY_LOG_BYTES = 1 << 20
_RAY_ERROR = re.compile(r"Error\b|ERROR|mismatch|Check failed")
_RAY_ERROR_LINES, _RAY_ERROR_LENGTH = 7, 300
"""Lines and characters of an error that are shown: two releases that do not fit take six lines."""


class NodePrograms:
    """Verbs of the node program. Each raises NodeError if a node cannot be reached or the program fails there."""

    def __init__(self, access: NodeAccess) -> None:
        self._access = access
        self._known_pythons: dict[str, str] | None = None
        self._unreached: Mapping[str, NodeError] = {}

    @property
    def _inventory(self) -> Inventory:
        return self._access.inventory

    async def pythons(self, on_event: OnEvent = ignored, wheels: Path | None = None) -> dict[str, str]:
        """The interpreter of sparkfleet's environment on every node that can be reached. Makes missing environments.

        A verb on one of the others raises the error with which it was not reached.

        Args:
            wheels: directory from which nodes without internet install.

        Raises:
            NodeError: no node can be reached, or an environment cannot be made.
        """
        if self._known_pythons is None:
            if self._inventory.environment is not None:
                self._known_pythons = dict.fromkeys(self._inventory.nodes, self._inventory.environment)
            else:
                from sparkfleet.install.environment import (
                    install,  # a slow import, needed to start a fleet only
                )

                in_use = await self.version_in_use()

                self._known_pythons, self._unreached = await install(
                    self._access.channels,
                    wheels,
                    lambda node, step: on_event(
                        StepRunning(step=FleetStep.INSTALLING, detail=f"{node}: {step}")
                    ),
                    in_use,
                )
        return self._known_pythons

    async def version_in_use(self) -> str:
        """Minor version of Python of the environment that the head runs from; "" if it is not known."""
        from sparkfleet.install.environment import python_version

        try:
            there = await self._access.state(self._inventory.head)
        except (SparkfleetError, ValueError):  # the head's own steps report it
            return ""
        return python_version(there.python or "")

    async def _python(self, node: str) -> str:
        """The interpreter on one node. Raises NodeError if it was not reached."""
        found = await self.pythons()
        if node in self._unreached:
            raise self._unreached[node]
        return found[node]

    async def pythons_in_use(self) -> dict[str, str | None]:
        """The interpreter of each node's watchdog, which runs or ran last; None: the node was never in the fleet."""
        nodes = tuple(self._inventory.nodes)
        found = await asyncio.gather(*map(self._access.state, nodes))
        return {node: one.python for node, one in zip(nodes, found, strict=True)}

    # verbs that start and stop the fleet

    async def prepare(self, apply: Sequence[ApplyRequest] = ()) -> Prepared:
        """Addresses and secrets of the head, for nodes that join it. Starts nothing."""
        answer = await self._boot(self._inventory.head, "prepare", self._up(apply))
        return Prepared.model_validate_json(json.dumps(answer))

    async def start_head(self, apply: Sequence[ApplyRequest]) -> dict[str, Any]:
        """Starts Ray and the controller on the head; the answer has the file with the outcome."""
        return await self._boot(self._inventory.head, "up", self._up(apply))

    async def join(self, node: str, request: JoinRequest) -> dict[str, Any]:
        """Starts Ray on a node that is not the head."""
        return await self._boot(node, "join", request)

    def joining(self, node: str, prepared: Prepared, *, joined: bool = False) -> JoinRequest:
        """The request with which a node joins the head. `joined`: it has, and its Ray goes on."""
        return JoinRequest(
            fleet=self._inventory.fleet,
            state_dir=self._access.state_dir(node),
            node=node,
            host=node_addresses(self._inventory)[node].address,
            head=self._inventory.head,
            ray=prepared.address.ray,
            term=prepared.address.term,
            ray_token=prepared.ray_token,
            engine_secret=prepared.engine_secret,
            engine_tokens=prepared.engine_tokens,
            joined=joined,
        )

    async def make_controller(self) -> None:
        """Makes a controller in the head's live Ray, and waits until it answers. Ray and the engines are not touched."""
        await self._boot(self._inventory.head, "controller", self._up())

    async def down(self, node: str) -> bool:
        """Stops a node. False if it is in no fleet. Raises ControlError if something could not be stopped."""
        there = await self._access.state(node)
        python = there.python
        if python is None and (there.unreadable or there.runs):
            python = await self._python(node)
        if python is None:
            return False
        request = OnNode(fleet=self._inventory.fleet, state_dir=self._access.state_dir(node))
        done = await self._run(node, python, "down", request, timeout_s=DOWN_S)
        if done.exit_code != 0:
            raise ControlError(f"{node}: something could not be stopped: {done.stderr.strip()[-500:]}")
        return True

    async def ray_trouble(self, node: str) -> str:
        """The last error in Ray's log on a node, and the log's path; "" if it has none, or cannot be read."""
        try:
            path = f"{await self._access.root_of(node)}/logs/ray.log"
            text = await self._access.channels[node].read(path, limit=_RAY_LOG_BYTES)
        except (SparkfleetError, ValueError):
            return ""
        lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
        at = max((number for number, line in enumerate(lines) if _RAY_ERROR.search(line)), default=None)
        if at is None:
            return ""
        words = escape(" ".join(lines[at : at + _RAY_ERROR_LINES]))
        return f"{words[:_RAY_ERROR_LENGTH]} ({path} on {node})"

    # verbs that report their errors in their answer: those are raised as ControlError

    async def change_gateway(self) -> list[str]:
        """Lets the gateways listen as the inventory has it. Returns those that have not changed yet."""
        request = UpRequest(fleet=self._inventory.fleet, inventory=self._inventory, who=who())
        late: list[str] = (await self._call(self._inventory.head, "gateway", request))["late"]
        return late

    async def store(self, request: StoreRequest) -> dict[str, Any]:
        """Runs a verb on the store on the head, with or without a controller."""
        head = self._inventory.head
        return await self._call(head, "store", request, (await self._access.state(head)).python)

    async def move_step(self, node: str, request: MoveRequest) -> dict[str, Any]:
        """Carries out a step of moving the head on one node."""
        return await self._call(node, "move", request)

    async def secrets_step(self, node: str, request: SecretsRequest) -> dict[str, Any]:
        """Carries out a step of changing the internal secrets on one node."""
        return await self._call(node, "secrets", request)

    async def upgrade_step(
        self, node: str, step: UpgradeStep, token: str, *, granted: bool = False
    ) -> dict[str, Any]:
        """Carries out a step of the upgrade with this token on one node, with the release of this process."""
        request = UpgradeRequest(
            fleet=self._inventory.fleet, step=step, token=token, who=who(), granted=granted
        )
        try:
            return await self._call(node, "upgrade", request)
        except ControlError as error:
            raise ControlError(f"{node}: {error.what}", means=error.means, do=error.do) from error

    def _up(self, apply: Sequence[ApplyRequest] = ()) -> UpRequest:
        return UpRequest(
            fleet=self._inventory.fleet,
            state_dir=self._access.state_dir(self._inventory.head),
            inventory=self._inventory,
            who=who(),
            apply=tuple(apply),
        )

    async def _call(self, node: str, verb: str, request: OnNode, python: str | None = None) -> dict[str, Any]:
        full = request.model_copy(update={"state_dir": self._access.state_dir(node)})
        answer = await self._boot(node, verb, full, python)
        if "error" not in answer:
            return answer
        found = ControlError(**answer["error"])
        if number := answer.get("errno"):
            again = f"`{_command(verb, request)}`"
            raise ControlError(
                f"{node}: {found.what}", means=found.means, do=f"{_remedy(number, node)}, then {again}."
            )
        raise found

    async def _boot(self, node: str, verb: str, request: OnNode, python: str | None = None) -> dict[str, Any]:
        """Answer of a verb, with this interpreter or that of the node's environment."""
        done = await self._run(node, python or await self._python(node), verb, request)
        if done.exit_code != 0:
            reason = done.stderr.strip()[-500:]
            number = next((one for one in SURROUNDINGS if reason.endswith(os.strerror(one))), None)
            raise NodeError(
                f"{node}: sparkfleet could not be started: {reason}",
                do="" if number is None else f"{_remedy(number, node)}, then run the command again.",
            )
        return json_answer(node, done.stdout)

    async def _run(
        self, node: str, python: str, verb: str, request: OnNode, timeout_s: float = RUN_S
    ) -> Completed:
        try:
            given = request.model_dump_json().encode()
        except PydanticSerializationError as error:  # bytes of an argument that are no text
            raise ControlError(
                "An argument is not text in UTF-8.",
                means=f"No name has such characters, so nothing was sent to {node}.",
                do=f"`{_command(verb, request)}` with a name in UTF-8."
                if verb in {"store", *_COMMANDS}
                else "",
            ) from error
        return await self._access.channels[node].run(
            node_command(python, verb),
            stdin=given,
            timeout_s=timeout_s,
        )


def _remedy(number: int, node: str) -> str:
    """The remedy for an error of a node's disk, by its number."""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"Free disk space on {node}"
    if number == errno.EROFS:
        return f"Make that file system writable on {node}"
    if number == errno.EISDIR:
        return f"Move that directory away on {node}"
    return f"Give the user of the fleet the permission for it on {node}"


def _command(verb: str, request: OnNode) -> str:
    """The command that carries out a step again."""
    if isinstance(request, StoreRequest):
        return "sparkfleet backup" if request.verb == "copy" else "sparkfleet restore"
    return _COMMANDS[verb]


_COMMANDS = {
    "gateway": "sparkfleet up",
    "move": "sparkfleet move-head",
    "secrets": "sparkfleet keys rotate-internal",
    "upgrade": "sparkfleet upgrade",
}
"""By the verb of the node's program."""


def who() -> str:
    """Origin of a request for the event log: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
