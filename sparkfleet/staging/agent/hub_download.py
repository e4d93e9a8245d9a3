"""`python -m sparkfleet.staging.agent.hub_download`, on a node: downloads a model from the Hub into this node's cache."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sparkfleet.specs.model_name import model_name
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.agent.transfer import RESERVE_BYTES, STREAMS, Arrival, Arrived
from sparkfleet.staging.connection_variables import check_connection_variables
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.storage_layout import HubPlace, hub_directory
from sparkfleet.values import Value

if TYPE_CHECKING:
    from sparkfleet.staging.hub import Hub


class PullRequest(Value):
    """Pull request: model, revision and files.

    Attributes:
        name: Hub id, with the tag of a GGUF model.
        revision: branch, tag or commit.
        manifest: its files, if they are known; None: the list is read from the Hub, and nothing is downloaded.
        cache: the Hub's cache on the node; "": the one of its user.
        endpoint: address of the Hub; "": HF_ENDPOINT of the node, or the public one.
        token: access token; "": the node's own, by huggingface_hub's rules.
        streams: concurrent files.
        reserve_bytes: bytes that stay free.
    """

    name: str
    revision: str = "main"
    manifest: Manifest | None = None
    cache: str = ""
    endpoint: str = ""
    token: str = Field(default="", repr=False)
    streams: int = STREAMS
    reserve_bytes: int = RESERVE_BYTES


def work(request: PullRequest, reporter: LineReporter) -> Value:
    """The manifest if the request has none, else the result of the download."""
    check_connection_variables()  # before the import, in which huggingface_hub reads some of them
    from sparkfleet.staging.hub import Hub  # a slow import, for this program only: the CLI has the request

    name = model_name(request.name)
    hub = Hub(name.base, endpoint=request.endpoint, token=request.token, note=reporter.note)
    if request.manifest is None:
        return hub.manifest(request.revision, name.tag)
    return asyncio.run(_download(hub, request, request.manifest, reporter))


async def _download(hub: Hub, request: PullRequest, manifest: Manifest, reporter: LineReporter) -> Arrived:
    place = HubPlace(hub_directory(request.cache), request.name)
    place.note(manifest)

    async def get(file: File, part: Path, stream: int) -> None:
        await _in_thread(lambda: hub.get(file, manifest.commit, part))

    arrival = Arrival(
        place, manifest, get, reporter, streams=request.streams, reserve_bytes=request.reserve_bytes
    )
    return await arrival.run(request.revision)


async def _in_thread(act: Callable[[], None]) -> None:
    """Runs `act` in a thread that does not keep the process alive: an error elsewhere ends the download at once."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            act()
        except BaseException as raised:  # raised again by the caller
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True).start()
    await done


def main() -> int:
    """Entry point."""
    return program(PullRequest, work)


if __name__ == "__main__":
    sys.exit(main())
