"""Runs staging's programs on many nodes concurrently, and reports their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.remote.channel import Channel
from sparkfleet.staging.agent.hash_tree import SealRequest
from sparkfleet.staging.agent.held_image import ImageHeld
from sparkfleet.staging.agent.images import ImageRequest
from sparkfleet.staging.agent.scan import LookRequest, NodeScan
from sparkfleet.staging.agent.staged_images import StagedImages, StagedImagesRequest
from sparkfleet.staging.agent_client import LIMIT_S, Line, call
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import Manifest
from sparkfleet.staging.progress import OnProgress, RateMeter, TransferPhase, TransferProgress, eta_s
from sparkfleet.staging.settings import StagingSettings
from sparkfleet.values import Value

T = TypeVar("T", bound=Value)
R = TypeVar("R")

LOOK_S = 120.0
"""Time limit of a scan; a cache of thousands of files is listed in less."""


class StagingNodes:
    """The nodes of a fleet, with staging's programs on them.

    Args:
        channels: to every node.
        settings: Pythons and caches of the nodes.
        progress: called with the progress.
    """

    def __init__(
        self, channels: Mapping[str, Channel], settings: StagingSettings, progress: OnProgress
    ) -> None:
        self.channels = channels
        self.settings = settings
        self.progress = progress

    async def ask(
        self,
        node: str,
        module: str,
        request: Value,
        answer: type[T],
        *,
        listener: Callable[[Line], None] = lambda _: None,
        timeout_s: float = LIMIT_S,
    ) -> T:
        """Run one program on a node and return its answer. Raises NodeError."""
        if node not in self.channels:
            raise StagingError(
                f"{node} is not a node of this fleet.", do="List the nodes: `sparkfleet status`."
            )
        program = (self.settings.python_on(node), module)
        return await call(
            self.channels[node], program, request, answer, on_line=listener, timeout_s=timeout_s
        )

    async def look(self, needed: Iterable[str], request: LookRequest) -> dict[str, NodeScan]:
        """Scans of every node. Raises NodeError if a needed node does not answer; others are left out."""

        async def one(node: str) -> NodeScan:
            mine = request.model_copy(update={"cache": self.settings.cache_on(node)})
            return await self.ask(node, "scan", mine, NodeScan, timeout_s=LOOK_S)

        wanted = tuple(needed)
        return await self._on_all((*self.channels, *wanted), one, frozenset(wanted))

    async def seal(self, kind: str, name: str, nodes: Iterable[str]) -> dict[str, Manifest]:
        """Hash a directory on each of `nodes` and return its manifests."""

        async def one(node: str) -> Manifest:
            request = SealRequest.model_validate(
                {"kind": kind, "name": name, "cache": self.settings.cache_on(node)}
            )
            return await self.ask(
                node, "hash_tree", request, Manifest, listener=self.listener("checking", name, node)
            )

        wanted = tuple(nodes)
        return await self._on_all(wanted, one, frozenset(wanted))

    async def images(
        self, nodes: Iterable[str], request: ImageRequest, needed: Iterable[str]
    ) -> dict[str, ImageHeld]:
        """Run an operation on an image on each of `nodes`; those not in `needed` may fail."""

        async def one(node: str) -> ImageHeld:
            own = {"cache": self.settings.cache_on(node), "tool": self.settings.tool}
            limit_s = LOOK_S if request.action == "look" else LIMIT_S
            return await self.ask(
                node, "images", request.model_copy(update=own), ImageHeld, timeout_s=limit_s
            )

        return await self._on_all(tuple(nodes), one, frozenset(needed))

    async def staged_images(
        self, nodes: Mapping[str, Sequence[str]], needed: Iterable[str]
    ) -> dict[str, StagedImages]:
        """Images that staging named on each node: all of them, or, for digests of a node, those that were removed.

        Raises NodeError if a needed node does not answer; others are left out.
        """

        async def one(node: str) -> StagedImages:
            request = StagedImagesRequest(remove=tuple(nodes[node]), tool=self.settings.tool)
            return await self.ask(node, "staged_images", request, StagedImages, timeout_s=LIMIT_S)

        return await self._on_all(nodes, one, frozenset(needed))

    async def pull(self, image: str, nodes: Iterable[str]) -> tuple[str, ImageHeld]:
        """Pull an image from its registry on the first of `nodes` that can; returns that node and its image.

        Raises:
            StagingError: no node can pull it; the first node's error.
            NodeError: one of them does not answer.
        """
        refused: list[StagingError] = []
        request = ImageRequest(action="pull", image=image)
        for node in nodes:
            self.notify("image", image, node, "pulling the image from its registry")
            try:
                return node, (await self.images((node,), request, (node,)))[node]
            except StagingError as error:
                refused.append(error)
        raise StagingError(
            refused[0].what,
            means="No node could pull the image, so nothing is started with it.",
            do=refused[0].do,
        )

    def listener(
        self, phase: TransferPhase, name: str, node: str, source: str = ""
    ) -> Callable[[Line], None]:
        """Turns a program's lines into progress, with rates."""
        meter, clock = RateMeter(), asyncio.get_running_loop().time

        def line(received: Line) -> None:
            if received.event == "note":
                found: TransferPhase = "waiting" if received.phase == "waiting" else "note"
                self.progress(
                    TransferProgress(phase=found, name=name, node=node, source=source, text=received.text)
                )
            if received.event != "progress":
                return
            rate = meter.rate(clock(), received.done_bytes)
            self.progress(
                TransferProgress(
                    phase=phase,
                    name=name,
                    node=node,
                    source=source,
                    done_bytes=received.done_bytes,
                    total_bytes=received.total_bytes,
                    bytes_per_s=rate,
                    eta_s=eta_s(rate, received.total_bytes - received.done_bytes),
                )
            )

        return line

    def notify(self, phase: TransferPhase, name: str, node: str, text: str, source: str = "") -> None:
        """Report a message."""
        self.progress(TransferProgress(phase=phase, name=name, node=node, source=source, text=text))

    async def _on_all(
        self, nodes: Iterable[str], one: Callable[[str], Awaitable[R]], needed: frozenset[str]
    ) -> dict[str, R]:
        names = tuple(dict.fromkeys(nodes))
        answers = await asyncio.gather(*(one(node) for node in names), return_exceptions=True)
        found: dict[str, R] = {}
        for node, answer in zip(names, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[node] = answer
            elif node in needed or not isinstance(answer, NodeError):
                raise answer
            else:
                self.notify("note", "", node, f"left out: {_first_line(answer)}")
        return found


def _first_line(error: SparkfleetError) -> str:
    return error.what.splitlines()[0] if error.what else type(error).__name__
