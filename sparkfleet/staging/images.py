"""`python -m sparkfleet.staging.images`, on a node: container images by docker or podman, whichever the node has.

An image travels as an archive through the same door as a directory. Its identity is the digest of its configuration,
which names the digest of every layer: that is what is compared after it was loaded, because the digest of the manifest
does not survive an archive.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from sparkfleet.facts.untrusted import shown
from sparkfleet.nodes.base import Completed
from sparkfleet.nodes.local import execute
from sparkfleet.staging.arrive import RESERVE_BYTES, demand_room
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.lines import Reporter, program
from sparkfleet.staging.manifest import Manifest
from sparkfleet.staging.place import DirectoryPlace, check, directory_of
from sparkfleet.values import Value

TOOLS = ("docker", "podman")
ARCHIVE = "image.tar"
LIMIT_S = 6 * 3600.0
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}@sha256:(?P<digest>[0-9a-f]{64})", re.ASCII)
_ID = re.compile(r"(sha256:)?(?P<hex>[0-9a-f]{64})", re.ASCII)

Action = Literal["look", "pull", "save", "load", "drop"]


class ImageRequest(Value):
    """What to do with an image.

    Attributes:
        action: `look` whether it is here, `pull` it from its registry, `save` it as an archive, `load` that archive,
            or `drop` the archive.
        image: reference with its digest.
        cache: the Hub's cache, below which archives are put; "": below the user's cache.
        tool: docker or podman; "": whichever is there.
        id: what the image must turn out to be, on `load`.
        manifest: of the archive, on `load`.
        reserve_bytes: what must stay free, on `save`.
    """

    action: Action
    image: str
    cache: str = ""
    tool: str = ""
    id: str = ""
    manifest: Manifest | None = None
    reserve_bytes: int = RESERVE_BYTES


class ImageHeld(Value):
    """What a node has of an image: `id` is "" where it has nothing; `size` in bytes, unpacked."""

    tool: str = ""
    id: str = ""
    size: int = 0


def staged_name(image: str) -> str:
    """The name that a staged image has on every node, for whoever runs it: `name@digest` is unknown after a load.

    Raises:
        StagingError: the reference has no digest.
    """
    return f"localhost/sparkfleet-staged:{_digest(image)}"


def work(request: ImageRequest, reporter: Reporter) -> ImageHeld:
    """Do it, and say what is here afterwards."""
    return asyncio.run(_Images(request).do())


class _Images:
    def __init__(self, request: ImageRequest) -> None:
        self._request = request
        self._name = staged_name(request.image)
        self._directory = directory_of("image", request.image, request.cache)
        self._archive = self._directory / ARCHIVE
        self._tool = ""

    async def do(self) -> ImageHeld:
        self._tool = await _tool(self._request.tool)
        match self._request.action:
            case "pull":
                await self._run("pull", "--quiet", self._request.image, doing="download it")
            case "save":
                await self._save()
            case "load":
                await self._load()
            case "drop":
                shutil.rmtree(self._directory, ignore_errors=True)
                shutil.rmtree(DirectoryPlace(self._directory).root, ignore_errors=True)
            case "look":
                pass
        found = await self._held()
        if found.id:
            await self._run("tag", found.id, self._name, doing="name it")
        return found

    async def _save(self) -> None:
        """An archive that is there already is kept: others may have copied half of it."""
        if self._archive.is_file():
            return
        found = await self._held()
        if not found.id:
            raise StagingError(f"{self._request.image} is not on this node any more.", do="Run it again.")
        demand_room(self._directory, found.size, self._request.reserve_bytes)
        beside = self._directory.with_name(f".{self._directory.name}.saving")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        await self._run("save", "--output", str(beside / ARCHIVE), found.id, doing="save it")
        (beside / ARCHIVE).chmod(0o600)
        beside.rename(self._directory)

    async def _load(self) -> None:
        manifest = self._request.manifest
        if manifest is None or len(manifest.files) != 1 or not check(self._archive, manifest.files[0]):
            shutil.rmtree(self._directory, ignore_errors=True)
            raise StagingError(
                "the archive of the image is damaged.",
                means="It was thrown away.",
                do="Run it again: it is copied anew.",
            )
        await self._run("load", "--quiet", "--input", str(self._archive), doing="load it")
        found = await self._inspect(self._request.id)
        if found.id != self._request.id:
            raise StagingError(
                f"{self._request.image}: what was loaded is not the image {self._request.id[:12]} that was sent.",
                means="The two nodes' container tools disagree about what the image is.",
                do="Use one tool (docker or podman), of one version, on all nodes.",
            )
        await self._run("tag", found.id, self._name, doing="name it")

    async def _held(self) -> ImageHeld:
        found = await self._inspect(self._name)
        return found if found.id else await self._inspect(self._request.image)

    async def _inspect(self, reference: str) -> ImageHeld:
        done = await _execute((self._tool, "image", "inspect", reference))
        if done.exit_code:
            return ImageHeld(tool=self._tool)
        return _described(self._tool, done.stdout)

    async def _run(self, *words: str, doing: str) -> None:
        done = await _execute((self._tool, *words))
        if done.exit_code:
            said = done.stderr.strip().splitlines()
            raise StagingError(
                f"{self._request.image}: {self._tool} could not {doing}: {shown(said[-1]) if said else done.exit_code}.",
                do=f"Try `{self._tool} {words[0]}` on the node by hand; a private registry needs a login there.",
            )


async def _execute(argv: Sequence[str]) -> Completed:
    return await execute(argv, env=dict(os.environ), timeout_s=LIMIT_S)


def _described(tool: str, inspected: str) -> ImageHeld:
    try:
        (found,) = json.loads(inspected)
        size, match = found["Size"], _ID.fullmatch(found["Id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StagingError(
            f"the container tool describes an image in a way that is not understood: {error!r}."
        ) from error
    if match is None or not isinstance(size, int):
        raise StagingError("the container tool describes an image in a way that is not understood.")
    return ImageHeld(tool=tool, id=match["hex"], size=max(size, 0))


def _digest(image: str) -> str:
    found = _REFERENCE.fullmatch(image)
    if found is None:
        raise StagingError(
            f"{shown(image)} does not name one image for good.",
            means="A tag may be moved, and two nodes would run two images.",
            do="Give it with its digest: name@sha256:… (docker or podman image inspect shows it).",
        )
    return found["digest"]


async def _tool(wanted: str) -> str:
    """The container tool that answers: a docker without its daemon, or one that this user may not ask, does not."""
    silent = ""
    for tool in (wanted,) if wanted in TOOLS else TOOLS:
        if shutil.which(tool):
            done = await _execute((tool, "version"))
            if done.exit_code == 0:
                return tool
            silent = f"{tool} is on this node, but does not answer: {shown(done.stderr.strip().partition(chr(10))[0])}."
    raise StagingError(
        silent or "neither docker nor podman is on this node.",
        do="Add the user to the group docker and log in again: sudo usermod -aG docker $USER."
        if silent
        else "Install one: sudo apt-get install podman.",
    )


def main() -> int:
    """Entry point."""
    return program(ImageRequest, work)


if __name__ == "__main__":
    sys.exit(main())
