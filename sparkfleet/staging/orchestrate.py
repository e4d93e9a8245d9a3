"""Brings models and images to the nodes that need them: from the Hub once, then from node to node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Channel
from sparkfleet.specs.inventory import Inventory
from sparkfleet.staging.agent.held_image import ImageHeld
from sparkfleet.staging.agent.hub_download import PullRequest
from sparkfleet.staging.agent.images import ImageRequest, staged_name
from sparkfleet.staging.agent.scan import HeldVersion, LookRequest, NodeScan
from sparkfleet.staging.agent.transfer import Arrived
from sparkfleet.staging.copy_executor import run_copies
from sparkfleet.staging.errors import HubUnreachable, StagingError
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.manifest import BUILTIN, Manifest, StagingItem
from sparkfleet.staging.plan import Have, StagePlan, linked, plan, puller
from sparkfleet.staging.progress import OnProgress, silent
from sparkfleet.staging.settings import Need, Staged, StagingSettings

T = TypeVar("T")
LIST_S = 10.0
"""Longest wait for the Hub's list of a copy that is taken as it is without an answer."""


async def stage(
    inventory: Inventory,
    channels: Mapping[str, Channel],
    needs: Sequence[Need],
    progress: OnProgress = silent,
    *,
    settings: StagingSettings | None = None,
) -> tuple[Staged, ...]:
    """Bring models and images to the nodes that need them. If they are there already, it costs one scan.

    An interruption (cancel, Ctrl-C, a power cut) loses nothing: the next run continues from the transferred bytes.

    Args:
        inventory: the fleet: nodes, and the links that copies go over.
        channels: to every node. Nodes that need nothing may send; those of them that do not answer are left out.
        needs: models and images with their nodes, in the order of their transfer.
        progress: called with the progress.
        settings: Pythons and caches of the nodes, token, reserve.

    Raises:
        StagingError: no room, no source, gated or damaged, with a remedy.
        NodeError: a node that needs something does not answer.
        FactError: a name is invalid.
    """
    fleet = StagingNodes(channels, settings or StagingSettings(), progress)
    return tuple([await _Stager(inventory, fleet, need).run() for need in needs])


async def survey(
    channels: Mapping[str, Channel],
    progress: OnProgress = silent,
    *,
    settings: StagingSettings | None = None,
) -> dict[str, NodeScan]:
    """Scan all content of every node that answers. A directory that one node knows of is looked for on all of them."""
    nodes = StagingNodes(channels, settings or StagingSettings(), progress)
    seen = await nodes.look((), LookRequest(everything=True))
    directories = {
        held.name: held.manifest
        for found in seen.values()
        for held in found.everything
        if held.kind == "directory" and held.manifest is not None
    }
    if not directories:
        return seen
    again = await nodes.look((), LookRequest(manifests=tuple(directories.values())))
    return {node: _with_directories(found, again.get(node)) for node, found in seen.items()}


def _with_directories(found: NodeScan, again: NodeScan | None) -> NodeScan:
    known = {held.name for held in found.everything if held.kind == "directory"}
    more = again.manifests if again is not None else ()
    added = (held for held in more if held.held_bytes and held.name not in known)
    return found.model_copy(update={"everything": (*found.everything, *added)})


class _Stager:
    """Staging of one need."""

    def __init__(self, inventory: Inventory, staging: StagingNodes, need: Need) -> None:
        self._inventory = inventory
        self._fleet = staging
        self._need = need
        self._name = need.wanted.name
        self._moved = 0
        self._is_listed = False
        """True if the Hub has listed a copy of another tool: each node that has it records the list."""

    async def run(self) -> Staged:
        if not self._need.nodes:
            return Staged(wanted=self._need.wanted, paths={})
        match self._need.wanted.kind:
            case "hub":
                return await self._from_hub()
            case "image":
                return await self._stage_image()
            case _:
                return await self._stage_directory()

    async def _from_hub(self) -> Staged:
        manifest = await self._pin()
        seen = await self._distribute(manifest)
        for node in self._need.nodes:
            held = seen[node].manifests[0]
            is_named = self._need.wanted.revision in (*held.revisions, manifest.commit)
            if self._is_listed or not held.complete or not is_named:
                # If nothing is missing, this only writes snapshot and reference.
                await self._download(node, manifest)
        return self._staged(manifest, {node: seen[node].manifests[0].path for node in self._need.nodes})

    async def _pin(self) -> Manifest:
        """Commit of a revision: one that nodes have complete, unless the need requires the Hub's."""
        seen = await self._fleet.look(self._need.nodes, LookRequest(wanted=(self._need.wanted,)))
        held = [have for node in seen for have in seen[node].wanted if have.complete and have.manifest]
        sure = [have for have in held if not have.no_tokenizer]
        if self._need.hub != "always" and (sure or (held and self._need.hub == "never")):
            return _most_common(sure or held)
        if self._need.hub == "never":
            raise StagingError(
                f"no node has a complete copy of {self._need.wanted.title}.",
                do=f"Download it: `sparkfleet models pull {self._name}`.",
            )
        order = sorted(self._need.nodes, key=lambda node: -seen[node].wanted[0].held_bytes)
        if not held or self._need.hub == "always":
            return await self._first_that_reaches(order, self._ask_hub)
        return await self._without_tokenizer(order[0], _most_common(held))

    async def _without_tokenizer(self, node: str, copy: Manifest) -> Manifest:
        """Files of a commit by the Hub, for a copy that may be a part of it; the copy's if the Hub cannot list them."""
        try:
            async with asyncio.timeout(LIST_S):
                listed = await self._ask_hub(node, copy.commit)
        except (StagingError, TimeoutError) as error:
            why = error.what if isinstance(error, StagingError) else "The Hub did not answer in time."
            text = f"{why} Taking the copy that the nodes have: it has no tokenizer, as drafts have none."
            self._fleet.notify("note", self._name, node, text)
            return copy
        self._is_listed = True
        return listed

    async def _ask_hub(self, node: str, revision: str = "") -> Manifest:
        self._fleet.notify("looking", self._name, node, "reading its list of files from the Hub")
        listener = self._fleet.listener("looking", self._name, node)
        request = self._pull_request(node, None)
        if revision:
            request = request.model_copy(update={"revision": revision})
        return await self._fleet.ask(node, "hub_download", request, Manifest, listener=listener)

    async def _distribute(self, manifest: Manifest) -> dict[str, NodeScan]:
        """Pull and copy until every node has the model; plan again after each pass that made progress."""
        failed: list[NodeError] = []
        left = None
        while True:
            request = LookRequest(manifests=(manifest,), needed=True)
            seen = await self._fleet.look(self._need.nodes, request)
            have = {node: _have(seen[node]) for node in seen}
            found = plan(
                self._inventory,
                manifest,
                have,
                self._need.nodes,
                self._fleet.settings.reserve_bytes,
                hub=self._need.hub != "never",
            )
            lacking = [node for node in self._need.nodes if not manifest.complete(have[node].held)]
            if not lacking:
                return seen
            if left is not None and len(lacking) >= left:
                raise failed[0] if failed else StagingError(f"{self._name} did not arrive on {lacking[0]}.")
            left = len(lacking)
            failed = await self._carry_out(manifest, found, have, lacking)

    async def _carry_out(
        self, manifest: Manifest, found: StagePlan, have: Mapping[str, Have], lacking: Sequence[str]
    ) -> list[NodeError]:
        if found.no_route:
            order = sorted(puller(manifest, have, lacking), key=lambda node: node != found.pull)
            await self._download_itself(order, manifest, found.no_route)
            return []
        if found.pull:

            async def download(node: str) -> Arrived:
                return await self._download(node, manifest)

            await self._first_that_reaches(puller(manifest, have, lacking), download)
            return []  # another node than planned may have pulled it: the copies are planned again
        arrived, failed = await run_copies(self._fleet, manifest, self._need.wanted.revision, found.copies)
        self._moved += sum(done.moved_bytes for done in arrived.values())
        return failed

    async def _download_itself(self, nodes: Sequence[str], manifest: Manifest, no_route: str) -> None:
        """Download on the first node that reaches the Hub, of those that no other one can send to."""

        async def download(node: str) -> Arrived:
            self._fleet.notify("note", self._name, node, f"{no_route} {node} downloads it from the Hub.")
            return await self._download(node, manifest)

        try:
            await self._first_that_reaches(nodes, download)
        except StagingError as error:
            raise StagingError(
                f"{no_route} The download by {nodes[-1]} failed, too: {error.what}",
                means=error.means,
                do=" Or ".join(
                    filter(None, (error.do, "connect them by a cable, and run `sparkfleet init`."))
                ),
            ) from error

    async def _first_that_reaches(self, nodes: Sequence[str], act: Callable[[str], Awaitable[T]]) -> T:
        """Result of the first node that reaches the Hub. Any other error is final."""
        for node in nodes[:-1]:
            try:
                return await act(node)
            except HubUnreachable as error:
                why = error.what.removeprefix(f"{node}: ")
                self._fleet.notify("note", self._name, node, f"{why} Trying another node.")
        return await act(nodes[-1])

    async def _download(self, node: str, manifest: Manifest) -> Arrived:
        listener = self._fleet.listener("hub", self._name, node)
        arrived = await self._fleet.ask(
            node, "hub_download", self._pull_request(node, manifest), Arrived, listener=listener
        )
        self._moved += arrived.moved_bytes
        return arrived

    def _pull_request(self, node: str, manifest: Manifest | None) -> PullRequest:
        settings = self._fleet.settings
        return PullRequest(
            name=self._name,
            revision=self._need.wanted.revision,
            manifest=manifest,
            cache=settings.cache_on(node),
            endpoint=settings.endpoint,
            token=settings.token,
            streams=settings.streams,
            reserve_bytes=settings.reserve_bytes,
        )

    async def _stage_directory(self) -> Staged:
        wanted = self._need.wanted
        seen = await self._fleet.look(self._need.nodes, LookRequest(wanted=(wanted,)))
        sealed = await self._fleet.seal(
            wanted.kind, wanted.name, [n for n in seen if seen[n].wanted[0].complete]
        )
        if not sealed:
            raise StagingError(
                f"{self._name} is on no node of the fleet.",
                do=_how_to_get(wanted),
            )
        manifest = _largest(sealed)
        for node in self._need.nodes:
            if node in sealed:
                _demand_alike(manifest, sealed[node], node)
        after = await self._distribute(manifest)
        return self._staged(manifest, {node: after[node].manifests[0].path for node in self._need.nodes})

    async def _stage_image(self) -> Staged:
        name = staged_name(self._name)
        look = ImageRequest(action="look", image=self._name)
        everybody = (*self._fleet.channels, *self._need.nodes)
        seen = await self._fleet.images(everybody, look, self._need.nodes)
        lacking = [node for node in self._need.nodes if not seen[node].runs_here]
        for machine in dict.fromkeys(seen[node].machine for node in lacking):
            await self._get_image(seen, machine, [node for node in lacking if seen[node].machine == machine])
        paths = dict.fromkeys(self._need.nodes, name)
        return Staged(wanted=self._need.wanted, paths=paths, moved_bytes=self._moved)

    async def _get_image(self, seen: Mapping[str, ImageHeld], machine: str, lacking: list[str]) -> None:
        """Get it to nodes of one architecture: from nodes that have it for these processors, or from its registry, once."""
        holders = [node for node, held in seen.items() if held.id and held.runs_on(machine)]
        if not holders:
            for node in (node for node, held in seen.items() if held.id):
                text = (
                    f"has it for {seen[node].architecture}, and {', '.join(lacking)} needs it for {machine}"
                )
                self._fleet.notify("note", self._name, node, text)
            pulled = (await self._fleet.pull(self._name, lacking))[0]
            holders = [pulled]
            lacking.remove(pulled)
        if lacking:
            await self._send_image(holders, lacking)

    async def _send_image(self, holders: Sequence[str], lacking: Sequence[str]) -> None:
        """Send it as an archive: saved on one node, copied as a directory, loaded on the others, then removed."""
        request = ImageRequest(
            action="save", image=self._name, reserve_bytes=self._fleet.settings.reserve_bytes
        )
        source = self._best_source(holders, lacking[0])
        self._fleet.notify("image", self._name, source, "saving the image as an archive")
        await self._fleet.images((source,), request, (source,))
        manifest = (await self._fleet.seal("image", self._name, (source,)))[source]
        narrowed = self._need.model_copy(update={"nodes": tuple(lacking)})
        copying = _Stager(self._inventory, self._fleet, narrowed)
        await copying._distribute(manifest)
        self._moved += copying._moved
        for node in lacking:
            self._fleet.notify("image", self._name, node, "loading the image", source)
        load = request.model_copy(update={"action": "load", "manifest": manifest})
        drop = request.model_copy(update={"action": "drop"})
        everybody = (source, *lacking)
        try:
            await self._fleet.images(lacking, load, lacking)
        except NodeError:
            with suppress(NodeError):  # the first error is the one to report
                await self._fleet.images(everybody, drop, ())
            raise
        await self._fleet.images(everybody, drop, everybody)

    def _best_source(self, holders: Sequence[str], target: str) -> str:
        """A holder that is linked to the target, if there is one."""
        return min(holders, key=lambda node: not linked(self._inventory, node, target))

    def _staged(self, manifest: Manifest, paths: dict[str, str]) -> Staged:
        for node in self._need.nodes:
            self._fleet.notify("done", self._name, node, "complete")
        return Staged(wanted=self._need.wanted, commit=manifest.commit, paths=paths, moved_bytes=self._moved)


def _have(seen: NodeScan) -> Have:
    held = seen.manifests[0]
    return Have(free_bytes=seen.free_bytes, held=held.held, begun=held.begun)


def _most_common(held: Sequence[HeldVersion]) -> Manifest:
    """Manifest of the commit that most nodes have: all ranks must load the same weights."""
    commits = [have.commit for have in held]
    chosen = max(dict.fromkeys(commits), key=commits.count)
    # The longest list of a commit: a snapshot that another tool downloaded may be partial.
    manifests = [have.manifest for have in held if have.commit == chosen and have.manifest]
    return max(manifests, key=lambda manifest: len(manifest.files))


def _largest(sealed: Mapping[str, Manifest]) -> Manifest:
    return max(sealed.values(), key=lambda manifest: (len(manifest.files), manifest.size))


def _demand_alike(manifest: Manifest, other: Manifest, node: str) -> None:
    """Refuse if files differ between nodes: a user's directory is never overwritten."""
    ours = {file.path: file.digest for file in manifest.files}
    for file in other.files:
        if ours.get(file.path, file.digest) != file.digest:
            raise StagingError(
                f"{node}: {manifest.name}/{file.path} differs from the file on the other nodes.",
                means="The ranks of a group would load different weights. Your directories are never overwritten.",
                do=f"Delete or move the directory {manifest.name} on the node with the wrong file.",
            )


def _how_to_get(wanted: StagingItem) -> str:
    """The way to a directory or a built-in model that no node has."""
    if wanted.kind != "builtin":
        return "Copy it to one of the nodes, at the same path."
    name = wanted.name.removeprefix(BUILTIN)
    return (
        f"Train it on one of the nodes, with a checkout of sparkfleet: `python -m sparkfleet.tiny_models build {name}`."
        " The others get it from there."
    )
