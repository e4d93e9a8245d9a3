"""`python -m sparkfleet.staging.agent.images`, on a node: container images by docker or podman, whichever the node has.

An image is copied as an archive, by the same path as a directory. Its id is the digest of its configuration, which contains
the digest of every layer; it is compared after loading, because an archive does not keep the digest of the manifest.

`look` and `pull` accept a tag, and the answer has the digest; the other actions require the digest. An image that was built
on a node and never pushed has none: its id may take that place.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.hostfacts.container import CONTAINERD_DRIVER, CONTAINERD_STORE, Tool
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import execute
from sparkfleet.runtime.containers.container_tools import TOOLS, is_used
from sparkfleet.staging.agent.held_image import (
    REFERENCE,
    TAGGED,
    ImageHeld,
    described,
    in_full,
    repository_of,
)
from sparkfleet.staging.agent.image_architectures import OTHER_BUILD, is_without_build, own_architecture
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.agent.transfer import RESERVE_BYTES, demand_room
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.lock_wait import alone
from sparkfleet.staging.manifest import Manifest
from sparkfleet.staging.storage_layout import DirectoryPlace, check, directory_of, flush
from sparkfleet.values import Value

ARCHIVE = "image.tar"
LIMIT_S = 6 * 3600.0
LOCAL = "localhost/"
"""Prefix of names that no registry serves."""
STAGED = f"{LOCAL}sparkfleet-staged"
"""Repository of the names that staging gives to images; the tag is the digest."""

ImageAction = Literal["look", "pull", "save", "load", "drop"]


class ImageRequest(Value):
    """Operation on an image.

    Attributes:
        action: `look` whether it is here, `pull` it from its registry, `save` it as an archive, `load` that archive,
            or `drop` the archive.
        image: reference with its digest; `look` and `pull` also accept a tag.
        cache: the Hub's cache, below which archives are stored; "": below the user's cache.
        tool: docker or podman; "": whichever the node has.
        manifest: of the archive, on `load`.
        reserve_bytes: bytes that stay free, on `save` and `load`.
    """

    action: ImageAction
    image: str
    cache: str = ""
    tool: str = ""
    manifest: Manifest | None = None
    reserve_bytes: int = RESERVE_BYTES


def staged_name(image: str) -> str:
    """Name of a staged image on every node, for engines: `name@digest` is unknown after a load.

    Raises:
        StagingError: the reference has no digest.
    """
    return f"{STAGED}:{_digest(image)}"


def work(request: ImageRequest, reporter: LineReporter) -> ImageHeld:
    """Do the action and return the image that the node has afterwards."""
    return asyncio.run(_Images(request, reporter).do())


class _Images:
    def __init__(self, request: ImageRequest, reporter: LineReporter) -> None:
        self._request = request
        self._reporter = reporter
        by_tag = request.action in ("look", "pull") and TAGGED.fullmatch(request.image)
        self._name = "" if by_tag else staged_name(request.image)
        self._directory = directory_of("image", request.image, request.cache)
        self._archive = self._directory / ARCHIVE
        self._tool = ""

    async def do(self) -> ImageHeld:
        await self._choose_tool()
        match self._request.action:
            case "pull":
                await self._pull()
            case "save":
                async with alone(DirectoryPlace(self._directory).lock, self._wait):
                    await self._save()
            case "load":
                await self._load()
            case "drop":
                shutil.rmtree(self._directory, ignore_errors=True)
                shutil.rmtree(DirectoryPlace(self._directory).root, ignore_errors=True)
            case "look":
                pass
        found = await self._held()
        if found.id and not found.runs_here and self._request.action in ("pull", "load"):
            raise _foreign(self._request.image, found)
        if found.runs_here and self._name:
            await self._run("tag", found.id, self._name, doing="name it")
        return found

    def _wait(self) -> None:
        self._reporter.note("another run is saving the image; waiting for that run.", "waiting")

    async def _choose_tool(self) -> None:
        """Choose the tool that has the image, else the first that answers; skip a podman that was never used."""
        answering = await answering_tools(self._request.tool)
        for self._tool in (tool for tool in answering if tool == answering[0] or is_used(tool)):
            if (await self._held()).id:
                return
        self._tool = answering[0]

    async def _pull(self) -> None:
        if self._request.image.startswith(LOCAL):
            if (silent := (await _asked_tools(self._request.tool))[1]) is not None:
                silent.what = f"{self._request.image} was not found: {silent.what}"
                raise silent
            if (found := await self._held()).id:
                raise _foreign(self._request.image, found)
            raise StagingError(
                f"{self._request.image} is not on this node; a localhost/ image was built on a node, no registry has it.",
                do="Build or load it on one node (`docker load`); sparkfleet copies it to the others.",
            )
        await self._run("pull", "--quiet", in_full(_untagged(self._request.image)), doing="download it")

    async def _save(self) -> None:
        """Save the image as an archive; an existing one is kept, because other nodes may have copied half of it."""
        if self._archive.is_file():
            return
        found = await self._held()
        if not found.id:
            raise StagingError(f"{self._request.image} is no longer on this node.", do="Run it again.")
        demand_room(self._directory, found.size, self._request.reserve_bytes)
        beside = self._directory.with_name(f".{self._directory.name}.saving")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        # By its name, which the archive then has, too: Docker with containerd's store (29 and later) saves no bare id, and
        # two stores may know one image by different ids.
        await self._run("tag", found.id, self._name, doing="name it")
        await self._run("save", "--output", str(beside / ARCHIVE), self._name, doing="save it")
        (beside / ARCHIVE).chmod(0o600)
        flush(beside / ARCHIVE)
        beside.rename(self._directory)

    async def _load(self) -> None:
        manifest = self._request.manifest
        if manifest is None or len(manifest.files) != 1 or not check(self._archive, manifest.files[0]):
            shutil.rmtree(self._directory, ignore_errors=True)
            raise StagingError(
                "the archive of the image is damaged.",
                means="It was deleted.",
                do="Run it again: the archive is copied again.",
            )
        try:
            # Half of the reserve, as in the course of a transfer: layers that the tool has already take no room again.
            reserve = self._request.reserve_bytes // 2
            means = "The image was not loaded; its archive was removed."
            demand_room(await self._store(), manifest.size, reserve, means)
            await self._run("load", "--quiet", "--input", str(self._archive), doing="load it")
        except StagingError:
            # Nothing lists archives, and on a full disk it would take the room that the next attempt needs.
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        if not (await self._inspect(self._name)).id:
            raise StagingError(
                f"{self._request.image}: {self._tool} has loaded its archive, and does not have it.",
                do=f"`{self._tool} images {STAGED}` on the node lists what it has; run it again.",
            )

    async def _store(self) -> Path:
        """Directory of the tool's layers, which may be on another disk; the archive's if the tool does not name it."""
        form = "{{.DriverStatus}}\n{{.DockerRootDir}}" if self._tool == "docker" else "{{.Store.GraphRoot}}"
        done = await _execute((self._tool, "info", "--format", form))
        driver, _, root = done.stdout.strip().rpartition("\n")
        named = Path(CONTAINERD_STORE if CONTAINERD_DRIVER in driver else root)
        return named if done.exit_code == 0 and named.is_absolute() else self._directory

    async def _held(self) -> ImageHeld:
        """Find the image by its staged name, its own name, or its id, which may be the reference's digest.

        One for other processors is returned only if there is no other.
        """
        digest = self._request.image.partition("@sha256:")[2]
        held = ImageHeld(tool=self._tool, machine=own_architecture())
        for reference in filter(None, (self._name, _untagged(self._request.image), digest)):
            found = await self._inspect(reference)
            if found.runs_here:
                return found
            held = held if held.id else found
        return held

    async def _inspect(self, reference: str) -> ImageHeld:
        done = await _execute((self._tool, "image", "inspect", reference))
        if done.exit_code:
            return ImageHeld(tool=self._tool, machine=own_architecture())
        return described(self._tool, done.stdout, self._request.image)

    async def _run(self, *words: str, doing: str) -> None:
        done = await _execute((self._tool, *words))
        if done.exit_code:
            stderr = done.stderr.strip().splitlines()
            remedy = _REMEDIES.get(words[0], f"Try `{self._tool} {words[0]}` on the node by hand.")
            raise StagingError(
                f"{self._request.image}: {self._tool} could not {doing}: {shown(stderr[-1]) if stderr else done.exit_code}.",
                do=OTHER_BUILD if any(map(is_without_build, stderr)) else remedy,
            )


_REMEDIES = {
    "pull": "If the registry is private: `docker login` on the node. If no node reaches it: `docker save` it elsewhere "
    "and `docker load` it on one node; sparkfleet copies it to the others."
}


def _foreign(image: str, found: ImageHeld) -> StagingError:
    return StagingError(
        f"{image} is built for {found.architecture}, and this node is {found.machine}.",
        means="Its container would end at once: exec format error.",
        do=OTHER_BUILD,
    )


async def _execute(argv: Sequence[str]) -> Completed:
    return await execute(argv, env=dict(os.environ), timeout_s=LIMIT_S)


def _untagged(image: str) -> str:
    """Drop the tag if there is a digest: not every tool accepts both."""
    name, at, digest = image.partition("@")
    return f"{repository_of(name)}@{digest}" if at else image


def _digest(image: str) -> str:
    found = REFERENCE.fullmatch(image)
    if found is None:
        raise StagingError(
            f"{shown(image)} has no digest.",
            means="A tag can move, and two nodes would run different images.",
            do="Add the digest: name@sha256:… (`docker image inspect` or `podman image inspect` shows it).",
        )
    return found["digest"]


async def answering_tools(wanted: str) -> tuple[Tool, ...]:
    """Container tools that answer; docker does not without its daemon, or without permission for this user."""
    answering, silent = await _asked_tools(wanted)
    if answering:
        return answering
    raise silent or StagingError(
        "neither docker nor podman is installed on this node.",
        do="Install one of them: `sudo apt-get install podman`.",
    )


async def _asked_tools(wanted: str) -> tuple[tuple[Tool, ...], StagingError | None]:
    """Container tools that answer, and the error for one that is installed and does not."""
    answering: list[Tool] = []
    silent = None
    for tool in [tool for tool in TOOLS if wanted in ("", tool)]:
        if shutil.which(tool):
            done = await _execute((tool, "version"))
            if done.exit_code == 0:
                answering.append(tool)
            else:
                silent = _silent(tool, done.stderr.strip().partition("\n")[0])
    return tuple(answering), silent


def _silent(tool: Tool, reason: str) -> StagingError:
    if tool == "docker" and "permission denied" in reason.lower():
        do = "Add the user to the group docker and log in again: `sudo usermod -aG docker $USER`."
    elif tool == "docker":
        do = "Start its daemon: `sudo systemctl start docker`; `systemctl status docker` shows why it ended."
    else:
        do = f"`{tool} version` on the node shows the reason."
    return StagingError(f"{tool} is installed on this node, but does not answer: {shown(reason)}.", do=do)


def main() -> int:
    """Entry point."""
    return program(ImageRequest, work)


if __name__ == "__main__":
    sys.exit(main())
