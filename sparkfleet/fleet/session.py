"""Session of one program with one fleet: the inventory, channels to its nodes, and a client of its controller."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import (
    ApplyRequest,
    JoinRequest,
    MoveRequest,
    OnNode,
    Prepared,
    SecretsRequest,
    StoreRequest,
    UpgradeRequest,
    UpgradeStep,
    UpRequest,
)
from sparkfleet.controlplane.api.client import PATIENCE_S, FleetClient, Reach, answering, trouble_of, unlike
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError, NodeError, UnreachableError, UnreadableStateError, WrongFleetError
from sparkfleet.fabric.node_addresses import meet_on_lan, seats
from sparkfleet.fleet.events import FleetStep, OnEvent, StepRunning, TroubleFound, UseCaseEvent, ignored
from sparkfleet.fleet.nodes.surroundings import NodeRole, NodeSurroundings, require_free, surroundings_of
from sparkfleet.install.environment import install
from sparkfleet.remote.channel import Channel
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.runtime.files.state_probe import found, state_root
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import load_inventory
from sparkfleet.values import Value

if TYPE_CHECKING:
    from aiohttp import Fingerprint

BOOT_S = 180.0
JOIN_S = 90.0
DOWN_S = 180.0


CERTIFICATE_TRIES, POLL_S = 20, 0.5
"""A gateway reports its certificate within 5 s of a change."""
QUICK_S = 3.0
"""Seconds to wait for a controller whose own note has the reason why it does not answer."""


class NoControllerError(UnreadableStateError):
    """Ray runs on the head, and no controller answers."""


class FoundState(Value):
    """State of a fleet on a node: see `runtime/files/state_probe.py`."""

    root: str = ""
    """Absolute path of the state directory; "" if the node has none."""
    python: str | None = None
    address: HeadAddress | None = None
    api_token: str = Field(default="", repr=False)
    ray: bool = False
    """True if the head's Ray listens."""
    controller: dict[str, Any] = Field(default_factory=dict)
    """Last note of the controller (`controlplane/controller_note.py`); its fields depend on its release."""
    unreadable: tuple[str, ...] = ()
    """Files that exist and cannot be read, each with the reason."""
    missing: tuple[str, ...] = ()
    """Files that do not exist."""
    spoilt: tuple[str, ...] = ()
    """Secrets of the head that no new controller can use, each with the reason."""
    runs: int = 0
    """Number of the fleet's processes on the node; counted only if a file is missing or unreadable."""
    joined: NodeRole | None = None
    """The node's role if it is not a head."""


class TakenDown(Value):
    """A fleet after `down`."""

    was_up: bool
    """False if no node was in the fleet: nothing was stopped."""
    has_run: bool
    """True if the head has a store."""
    deployments: dict[str, int] | None
    """Generation of each deployment that `up` starts again; None: not known, because the store cannot be read."""


class Session:
    """One program's connections to one fleet. Use as an asynchronous context manager, or `close` it.

    Args:
        inventory_path: the inventory file.
        on_event: receives the steps and troubles of the session.
    """

    def __init__(self, inventory_path: Path, on_event: OnEvent = ignored) -> None:
        self.inventory: Inventory = load_inventory(inventory_path)
        self._opened: dict[str, Channel] | None = None
        self._known_pythons: dict[str, str] | None = None
        self.left_by_a_reboot: tuple[str, ...] = ()
        """Nodes started by `bring_up` that have neither systemd nor cron, and stay down after a reboot."""
        self._on_event = on_event

    def report(self, event: UseCaseEvent) -> None:
        """Send an event to the session's receiver."""
        self._on_event(event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def channels(self) -> dict[str, Channel]:
        """A channel to every node. It connects on its first use."""
        if self._opened is None:
            self._opened = dict(open_channels(self.inventory))
        return self._opened

    @property
    def head(self) -> Channel:
        """The channel to the head node."""
        return self.channels[self.inventory.head]

    async def find_controller(self) -> FleetClient | None:
        """A client of the controller; None if the fleet is down. Waits for one if the head's Ray runs.

        A controller that is in trouble, or of another version of sparkfleet, is an event `TroubleFound`.

        Raises:
            UnreachableError: the head cannot be reached.
            UnreadableStateError: the fleet's state cannot be read, or its controller does not answer although Ray runs.
            WrongFleetError: another fleet's controller answers, or the node has joined another head.
        """
        found = await self._found_on_head()
        if found.address is None:
            self._require_down(found)
            return None
        client = await self._answering(found, found.address)
        if client is None and found.ray:
            raise no_controller(self.inventory.head, found.controller, found.spoilt)
        if client is None:
            return None
        if client.fleet_name not in ("", self.inventory.fleet):
            raise WrongFleetError(
                f"The controller at {found.address.api} on {self.inventory.head} is that of fleet {client.fleet_name},"
                f" not of {self.inventory.fleet}.",
                do="Check `fleet:` and `head:` in inventory.yaml.",
            )
        for line in _troubles(client):
            self._on_event(TroubleFound(line=line))
        return client

    async def _found_on_head(self) -> FoundState:
        head = self.inventory.head
        try:
            return await self._found(head)
        except NodeError as error:
            raise UnreachableError(
                f"{head}, the head of fleet {self.inventory.fleet}, cannot be reached: {error.what}",
                means="It is not known if the fleet is up. What runs goes on.",
                do=error.do
                or f"Check that {head} is on and that `ssh` to it works; `sparkfleet doctor` looks closer.",
            ) from error
        except ValueError as error:
            raise UnreadableStateError(
                f"The state of fleet {self.inventory.fleet} on {head} cannot be read: {error}",
                means="It is not known if the fleet is up. What runs goes on.",
                do=f"Look at the files in the state directory on {head}; docs/runbook.md describes them.",
            ) from error

    def _require_down(self, found: FoundState) -> None:
        """Raises an error if the fleet may run although this node has no address of a head.

        A node that has joined another head has none; if that head is gone, this node's own fleet is down.
        """
        if found.joined is not None:
            require_free(self.inventory, {self.inventory.head: NodeSurroundings(role=found.joined)})
            return
        reasons = list(found.unreadable)
        if found.runs:
            reasons += [f"{path} is missing" for path in found.missing]
        if reasons:
            count = f"{found.runs} processes of the fleet run there. " if found.runs else ""
            raise UnreadableStateError(
                f"The state of fleet {self.inventory.fleet} on {self.inventory.head} cannot be read:"
                f" {'; '.join(reasons)}.",
                means=f"{count}It is not known if the fleet is up: nothing was changed.",
                do="Repair or put back that file; docs/runbook.md has the cases.",
            )

    async def _answering(self, found: FoundState, address: HeadAddress) -> FleetClient | None:
        # It has written down that nobody reaches it, or it cannot start.
        quick = bool(found.controller.get("api") or found.spoilt)
        patience_s = (QUICK_S if quick else PATIENCE_S) if found.ray else 0.0
        try:
            return await answering(address, found.api_token, self.reach, patience_s)
        except WrongFleetError as error:
            raise WrongFleetError(
                f"The controller at {address.api} on {self.inventory.head} refuses this fleet's token.",
                means="It is another fleet's, or the file api.token was replaced after it started.",
                do="`sparkfleet doctor` shows the processes on the node; docs/runbook.md has the case.",
            ) from error

    async def head_root(self) -> str:
        """Absolute path of the fleet's state directory on its head; "" if it has none. Raises UnreachableError."""
        return (await self._found_on_head()).root

    async def root_of(self, node: str) -> str:
        """Absolute path of the fleet's state directory on a node; "" if it has none. Raises NodeError."""
        return (await self._found(node)).root

    async def make_controller(self) -> None:
        """Makes a controller in the head's live Ray, and waits until it answers. Ray and the engines are not touched.

        Raises:
            NodeError: it could not be made.
        """
        request = UpRequest(
            fleet=self.inventory.fleet,
            state_dir=self.state_dir(self.inventory.head),
            inventory=self.inventory,
        )
        await self._boot(self.inventory.head, await self.pythons(), "controller", request)

    async def change_gateway(self) -> list[str]:
        """Lets the gateways listen as the inventory has it. Returns those that have not changed yet.

        Raises:
            ControlError: it was refused.
            NodeError: the head cannot be reached.
        """
        head = self.inventory.head
        request = UpRequest(fleet=self.inventory.fleet, inventory=self.inventory, who=who())
        answer = await self._answered(head, await self.pythons(), "gateway", request)
        late: list[str] = answer["late"]
        return late

    async def store(self, request: StoreRequest) -> dict[str, Any]:
        """Runs a verb on the store on the head, with or without a controller.

        Raises:
            ControlError: it was refused.
            NodeError: the head cannot be reached.
        """
        there = await self._found(self.inventory.head)
        pythons = {self.inventory.head: there.python} if there.python else await self.pythons()
        return await self._answered(self.inventory.head, pythons, "store", request)

    async def move_step(self, node: str, request: MoveRequest) -> dict[str, Any]:
        """Carries out a step of moving the head on one node.

        Raises:
            ControlError: it was refused.
            NodeError: the node cannot be reached.
        """
        return await self._answered(node, await self.pythons(), "move", request)

    async def secrets_step(self, node: str, request: SecretsRequest) -> dict[str, Any]:
        """Carries out a step of changing the internal secrets on one node.

        Raises:
            ControlError: it was refused.
            NodeError: the node cannot be reached.
        """
        return await self._answered(node, await self.pythons(), "secrets", request)

    async def upgrade_step(self, node: str, step: UpgradeStep) -> dict[str, Any]:
        """Carries out a step of an upgrade on one node, with the release of this process.

        Raises:
            ControlError: it was refused.
            NodeError: the node cannot be reached.
        """
        request = UpgradeRequest(fleet=self.inventory.fleet, step=step)
        try:
            return await self._answered(node, await self.pythons(), "upgrade", request)
        except ControlError as error:
            raise ControlError(f"{node}: {error.what}", means=error.means, do=error.do) from error

    async def pythons_in_use(self) -> dict[str, str | None]:
        """The interpreter of each node's watchdog, which runs or ran last; None: the node was never in the fleet.

        Raises:
            NodeError: a node cannot be reached.
        """
        nodes = tuple(self.inventory.nodes)
        found = await asyncio.gather(*map(self._found, nodes))
        return {node: one.python for node, one in zip(nodes, found, strict=True)}

    async def prepared(self) -> Prepared:
        """Addresses and secrets of the head, for nodes that join it. Starts nothing. Raises NodeError."""
        head = self.inventory.head
        request = UpRequest(
            fleet=self.inventory.fleet, state_dir=self.state_dir(head), inventory=self.inventory
        )
        answer = await self._boot(head, await self.pythons(), "prepare", request)
        return Prepared.model_validate_json(json.dumps(answer))

    async def join(self, node: str, request: JoinRequest) -> None:
        """Starts Ray on a node that is not the head. Raises NodeError if the node refuses."""
        await self._boot(node, await self.pythons(), "join", request)

    async def controller(self) -> FleetClient:
        """A client of the controller. Raises ControlError if none answers."""
        client = await self.find_controller()
        if client is None:
            raise self.is_down()
        return client

    def is_down(self) -> ControlError:
        """The error for a fleet that is down."""
        return ControlError(
            f"Fleet {self.inventory.fleet} is down: no controller answers.",
            means="Nothing is served.",
            do="`sparkfleet up` or `sparkfleet apply FILE` starts it.",
        )

    async def bring_up(
        self, apply: Sequence[ApplyRequest], on_event: OnEvent = ignored, wheels: Path | None = None
    ) -> FleetClient:
        """Start Ray on every node and the controller on the head, and wait until all of them run.

        Ctrl-C ends the waiting only.

        Args:
            apply: deployments to apply at once.
            on_event: receives the steps.
            wheels: directory from which nodes without internet install.

        Raises:
            NodeError: a node cannot be reached, or sparkfleet cannot be installed on it.
            ControlError: the fleet did not come up, or a node did not join it.
        """
        require_free(self.inventory, await surroundings_of(self.inventory, self.channels))
        pythons = await self.pythons(on_event, wheels)
        request = UpRequest(
            fleet=self.inventory.fleet,
            state_dir=self.state_dir(self.inventory.head),
            inventory=self.inventory,
            apply=tuple(apply),
        )
        answer = await self._boot(self.inventory.head, pythons, "prepare", request)
        prepared = Prepared.model_validate_json(json.dumps(answer))
        on_event(StepRunning(step=FleetStep.STARTING_RAY))
        nodes = (self.inventory.head, *self._others())
        begun = await asyncio.gather(
            self._boot(self.inventory.head, pythons, "up", request),
            *(self._boot(name, pythons, "join", self.joining(name, prepared)) for name in nodes[1:]),
        )
        self.left_by_a_reboot = tuple(
            name for name, one in zip(nodes, begun, strict=True) if not one["comes_back"]
        )
        address = await self.until_up(begun[0]["outcome"], on_event)
        client = FleetClient(address, prepared.api_token, reach=self.reach)
        await self.until_joined(client, on_event)
        return client

    async def endpoint_trust(self, client: FleetClient) -> Fingerprint | bool:
        """The `ssl` of aiohttp's requests to the endpoint: its certificate as the controller knows it, under any address.

        Raises:
            ControlError: the endpoint has TLS, and the controller knows no certificate yet.
        """
        if client.address.tls is None:
            return True
        from aiohttp import Fingerprint  # a slow import

        async with client.again() as asking:
            for _ in range(CERTIFICATE_TRIES):
                found = (await asking.fleet()).certificate
                if found is not None:
                    return Fingerprint(bytes.fromhex(found.sha256))
                await asyncio.sleep(POLL_S)
        raise ControlError(
            "No gateway has reported its certificate yet.",
            do="`sparkfleet status`, then the same command again.",
        )

    @contextlib.asynccontextmanager
    async def endpoint(self, client: FleetClient) -> AsyncIterator[str]:
        """A base URL of the gateway from here: through SSH if it listens only on the head's loopback."""
        address = client.address
        if self.reach is None and address.gateway_host == "0.0.0.0":  # noqa: S104 (compared, not bound)
            yield f"{address.scheme}://127.0.0.1:{address.gateway_port}/v1"  # its address on the network may have changed
        elif self.reach is None or not address.is_private:
            yield address.endpoint
        else:
            async with self.reach(address.gateway_host, address.gateway_port) as (host, port):
                yield f"{address.scheme}://{host}:{port}/v1"

    def endpoint_words(self, client: FleetClient) -> str:
        """Address of the gateway, for a person."""
        address = client.address
        if self.reach is None or not address.is_private:
            return f"Endpoint: {address.endpoint}"
        open_ = "`gateway: {host: 0.0.0.0}` in the inventory opens it to the network"
        return f"Endpoint: {address.endpoint} (only on {self.inventory.head}; {open_})"

    async def is_complete(self, client: FleetClient) -> bool:
        """True if every node is part of the fleet. `client` is not entered."""
        async with client.again() as asking:
            return await _joined(asking) == set(self.inventory.nodes)

    async def take_down(self) -> TakenDown:
        """Stop everything on every node, the head first, so that it can end the groups in order.

        Raises:
            ControlError: something could not be stopped.
        """
        around = await surroundings_of(self.inventory, self.channels)
        require_free(self.inventory, around, verb="stops")
        ended = [
            await self._down(self.inventory.head),
            *await asyncio.gather(*map(self._down, self._others())),
        ]
        head = around.get(self.inventory.head, NodeSurroundings())
        return TakenDown(was_up=any(ended), has_run=head.store, deployments=head.generations)

    def _others(self) -> list[str]:
        return [name for name in self.inventory.nodes if name != self.inventory.head]

    @property
    def reach(self) -> Reach | None:
        """Makes the head's loopback reachable from here; None if this is the head."""
        return None if self.inventory.nodes[self.inventory.head].is_local else self.head.forward

    def state_dir(self, node: str) -> str | None:
        """State directory from this process's environment for this machine; None: from the node's environment."""
        return str(state_root(self.inventory.fleet)) if self.inventory.nodes[node].is_local else None

    async def _found(self, node: str) -> FoundState:
        return FoundState.model_validate_json(await self._probed(node, found))

    async def probe(self, node: str, probe: Callable[[Path], dict[str, object]]) -> dict[str, Any]:
        """Result of a function of `runtime/files/state_probe.py` on a node. Needs no more there than python3.

        Raises:
            NodeError: the node cannot be reached.
        """
        answer: dict[str, Any] = json.loads(await self._probed(node, probe, probe.__name__))
        return answer

    async def _probed(self, node: str, probe: Callable[[Path], dict[str, object]], *words: str) -> str:
        if self.inventory.nodes[node].is_local:
            return json.dumps(await asyncio.to_thread(probe, state_root(self.inventory.fleet)))
        source = (files("sparkfleet.runtime.files") / "state_probe.py").read_text()
        done = await self.channels[node].run(("python3", "-I", "-c", source, self.inventory.fleet, *words))
        if done.exit_code != 0:
            raise NodeError(
                f"{node}: python3 failed with exit code {done.exit_code}: {done.stderr.strip()[-200:]}"
            )
        return done.stdout

    async def pythons(self, on_event: OnEvent = ignored, wheels: Path | None = None) -> dict[str, str]:
        """The interpreter of sparkfleet's environment on every node. Makes missing environments.

        Args:
            on_event: receives the steps.
            wheels: directory from which nodes without internet install.

        Raises:
            NodeError: a node cannot be reached, or its environment cannot be made.
        """
        if self._known_pythons is None:
            if self.inventory.environment is not None:
                self._known_pythons = dict.fromkeys(self.inventory.nodes, self.inventory.environment)
            else:
                self._known_pythons = await install(
                    self.channels,
                    wheels,
                    lambda node, step: on_event(
                        StepRunning(step=FleetStep.INSTALLING, detail=f"{node}: {step}")
                    ),
                )
        return self._known_pythons

    def joining(self, name: str, prepared: Prepared) -> JoinRequest:
        """The request with which a node joins the head."""
        return JoinRequest(
            fleet=self.inventory.fleet,
            state_dir=self.state_dir(name),
            node=name,
            host=seats(self.inventory)[name].address,
            head=self.inventory.head,
            ray=prepared.address.ray,
            ray_tls=meet_on_lan(self.inventory),
            ray_token=prepared.ray_token,
            engine_secret=prepared.engine_secret,
            engine_tokens=prepared.engine_tokens,
        )

    async def _answered(
        self, node: str, pythons: Mapping[str, str], verb: str, request: OnNode
    ) -> dict[str, Any]:
        """Answer of a verb of a node that reports its errors in it. Raises ControlError with the parts of such an error."""
        full = request.model_copy(update={"state_dir": self.state_dir(node)})
        answer = await self._boot(node, pythons, verb, full)
        if "error" in answer:
            raise ControlError(**answer["error"])
        return answer

    async def _boot(
        self, node: str, pythons: Mapping[str, str], verb: str, request: OnNode
    ) -> dict[str, Any]:
        done = await self.channels[node].run(
            (pythons[node], "-P", "-m", "sparkfleet.node_daemon.node_cli", verb),
            stdin=request.model_dump_json().encode(),
        )
        if done.exit_code != 0:
            raise NodeError(f"{node}: sparkfleet could not be started: {done.stderr.strip()[-500:]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def until_up(self, result: str, on_event: OnEvent, node: str | None = None) -> HeadAddress:
        """Waits for the outcome of a head's start, a file on it. Raises ControlError if it does not come up."""
        channel = self.channels[node or self.inventory.head]
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

    async def until_joined(self, client: FleetClient, on_event: OnEvent) -> None:
        """Wait until Ray on every node is part of the fleet."""
        began = asyncio.get_running_loop().time()
        async with client.again() as asking:
            while missing := sorted(set(self.inventory.nodes) - await _joined(asking)):
                on_event(StepRunning(step=FleetStep.JOINING, subjects=tuple(missing)))
                if asyncio.get_running_loop().time() - began > JOIN_S:
                    raise ControlError(
                        f"{', '.join(missing)} did not join the fleet within {JOIN_S:.0f} s.",
                        means="The other nodes are up; no group is started on those that are missing.",
                        do="`sparkfleet doctor` looks for the cause; `sparkfleet up` tries again.",
                    )
                await asyncio.sleep(0.2)

    async def _down(self, node: str) -> bool:
        """Stops a node. False if it is in no fleet."""
        there = await self._found(node)
        python = there.python
        if python is None and (there.unreadable or there.runs):
            python = (await self.pythons())[node]
        if python is None:
            return False
        request = OnNode(fleet=self.inventory.fleet, state_dir=self.state_dir(node))
        done = await self.channels[node].run(
            (python, "-P", "-m", "sparkfleet.node_daemon.node_cli", "down"),
            stdin=request.model_dump_json().encode(),
            timeout_s=DOWN_S,
        )
        if done.exit_code != 0:
            raise ControlError(f"{node}: something could not be stopped: {done.stderr.strip()[-500:]}")
        return True

    async def close(self) -> None:
        """Close every connection."""
        opened, self._opened = self._opened or {}, None
        await asyncio.gather(*(channel.close() for channel in opened.values()))


def no_controller(head: str, note: Mapping[str, Any], spoilt: Sequence[str] = ()) -> NoControllerError:
    """Error about a head whose Ray runs without a controller that answers, with the controller's own reason.

    Args:
        head: the node.
        note: the controller's last one.
        spoilt: files that a new controller cannot use, each with the reason.
    """
    api = str(note.get("api") or "") or "; ".join(spoilt)
    reason = api or str(note.get("what") or "")
    return NoControllerError(
        f"Ray runs on {head}, but the controller does not answer.{f' {reason}' if reason else ''}",
        means="Running engines go on, and the gateways keep their last table; the desired state is on the head's disk.",
        do="Free that address, or put that file back (a secret is the same on every node): the controller continues."
        if api
        else "`sparkfleet up` makes a controller, and touches neither Ray nor the engines.",
    )


def _troubles(client: FleetClient) -> Iterator[str]:
    if words := trouble_of(client):
        yield words
    if client.version not in ("", __version__):
        yield " ".join(str(unlike(client.version)).splitlines())


async def _joined(client: FleetClient) -> set[str]:
    return {node.name for node in (await client.fleet()).nodes if node.joined}


def who() -> str:
    """Origin of a request for the event log: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
