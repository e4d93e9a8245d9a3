"""`python -m sparkfleet.staging.agent.staged_images`, on a node: images that staging named, listed or removed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import execute
from sparkfleet.runtime.containers.container_tools import is_used
from sparkfleet.staging.agent.images import STAGED, answering_tools
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.errors import StagingError
from sparkfleet.values import Value

LIMIT_S = 600.0
"""Time limit of one command; to remove 20 GB of layers takes seconds."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StagedImagesRequest(Value):
    """Images to remove.

    Attributes:
        remove: digests that staging named images by; none: the images are listed.
        tool: docker or podman; "": each that the node has.
    """

    remove: tuple[Digest, ...] = ()
    tool: str = ""


class StagedImage(Value):
    """An image that staging named.

    Attributes:
        digest: in its registry, or its id; part of the name that staging gave it.
        tool: docker or podman.
        size: bytes, as the tool counts them (`ImageHeld.size`).
        names: its other names; as long as it has one, its bytes stay.
    """

    digest: Digest
    tool: str
    size: int
    names: tuple[str, ...] = ()


class StagedImages(Value):
    """Images that are on a node, or were removed from it."""

    images: tuple[StagedImage, ...] = ()
    kept: tuple[str, ...] = ()
    """Reasons of images that could not be removed, such as a container that uses one."""


def work(request: StagedImagesRequest, reporter: LineReporter) -> StagedImages:
    """List what staging named, or remove these names. An image without another name goes with it.

    Raises:
        StagingError: a tool's answer has an unknown form.
    """
    return asyncio.run(_work(request))


async def _work(request: StagedImagesRequest) -> StagedImages:
    try:
        tools = await answering_tools(request.tool)
    except StagingError:
        return StagedImages()  # without a tool there are no images
    found, kept = [], []
    for tool in (tool for tool in tools if tool == tools[0] or is_used(tool)):
        for image in await _list(tool):
            if not request.remove:
                found.append(image)
            elif image.digest in request.remove:
                done = await _run(tool, "rmi", f"{STAGED}:{image.digest}")
                if done.exit_code:
                    reason = shown((done.stderr.strip().splitlines() or [str(done.exit_code)])[-1])
                    kept.append(f"{image.digest[:12]}: {tool}: {reason}")
                else:
                    found.append(image)
    return StagedImages(images=tuple(found), kept=tuple(kept))


async def _list(tool: str) -> list[StagedImage]:
    done = await _run(tool, "images", "--format", "{{.Repository}}:{{.Tag}}", STAGED)
    if done.exit_code:
        raise StagingError(f"`{tool} images` failed: {shown(done.stderr.strip())}")
    digests = sorted({found[1] for found in re.finditer(rf"{STAGED}:([0-9a-f]{{64}})\b", done.stdout)})
    found = []
    for digest in digests:
        seen = await _run(tool, "image", "inspect", f"{STAGED}:{digest}")
        if seen.exit_code == 0:  # else it has just been removed
            found.append(_described(tool, digest, seen.stdout))
    return found


def _described(tool: str, digest: str, inspected: str) -> StagedImage:
    try:
        (image,) = json.loads(inspected)
        names = tuple(sorted(_other_names(image.get("RepoTags") or ())))
        return StagedImage(digest=digest, tool=tool, size=max(int(image["Size"]), 0), names=names)
    except (ValueError, KeyError, TypeError) as error:
        raise StagingError(f"the output of `{tool} image inspect` has an unknown form: {error!r}.") from error


def _other_names(tags: Sequence[str]) -> Iterator[str]:
    return (tag for tag in tags if not tag.startswith(f"{STAGED}:"))


async def _run(tool: str, *words: str) -> Completed:
    return await execute((tool, *words), env=dict(os.environ), timeout_s=LIMIT_S)


def main() -> int:
    """Entry point."""
    return program(StagedImagesRequest, work)


if __name__ == "__main__":
    sys.exit(main())
