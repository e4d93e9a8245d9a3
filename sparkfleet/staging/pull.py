"""`python -m sparkfleet.staging.pull`, on a node: a model from the Hub into this node's cache."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pydantic import Field

from sparkfleet.staging.arrive import RESERVE_BYTES, STREAMS, Arrival, Arrived
from sparkfleet.staging.hub import Hub, endpoint_of, token_of
from sparkfleet.staging.lines import Reporter, program
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.place import HubPlace, home, hub_directory
from sparkfleet.values import Value


class PullRequest(Value):
    """What to pull.

    Attributes:
        name: Hub id.
        revision: branch, tag or commit.
        manifest: what it consists of, where that is known; None: the Hub is asked, and nothing is downloaded.
        cache: the Hub's cache on the node; "": the one of its user.
        endpoint: address of the Hub; "": HF_ENDPOINT of the node, or the public one.
        token: proves who asks; "": the node's own.
        streams: files at a time.
        reserve_bytes: what must stay free.
        backoff_s: first wait after something transient.
    """

    name: str
    revision: str = "main"
    manifest: Manifest | None = None
    cache: str = ""
    endpoint: str = ""
    token: str = Field(default="", repr=False)
    streams: int = STREAMS
    reserve_bytes: int = RESERVE_BYTES
    backoff_s: float = 1.0


def work(request: PullRequest, reporter: Reporter) -> Value:
    """The manifest where there was none, else what became of the download."""
    return asyncio.run(_work(request, reporter))


async def _work(request: PullRequest, reporter: Reporter) -> Value:
    endpoint = request.endpoint or endpoint_of(os.environ)
    token = request.token or token_of(os.environ, home())
    async with Hub(request.name, endpoint=endpoint, token=token, backoff_s=request.backoff_s) as hub:
        if request.manifest is None:
            return await hub.manifest(request.revision)
        return await _download(hub, request, request.manifest, reporter)


async def _download(hub: Hub, request: PullRequest, manifest: Manifest, reporter: Reporter) -> Arrived:
    place = HubPlace(hub_directory(request.cache), request.name)
    place.note(manifest)

    async def get(file: File, part: Path, stream: int) -> None:
        await hub.get(file, manifest.commit, part)

    arrival = Arrival(
        place, manifest, get, reporter, streams=request.streams, reserve_bytes=request.reserve_bytes
    )
    return await arrival.run(request.revision)


def main() -> int:
    """Entry point."""
    return program(PullRequest, work)


if __name__ == "__main__":
    sys.exit(main())
