"""`python -m sparkfleet.staging.fetch`, on a node: copies from another node what is missing here, over its rails."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from pydantic import Field

from sparkfleet.facts.untrusted import shown
from sparkfleet.staging.arrive import RESERVE_BYTES, STREAMS, Arrival
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.lines import Reporter, program
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.place import HubPlace, place_of, size_of
from sparkfleet.staging.serve import MODULE, USER, no_rsync
from sparkfleet.staging.tether import tethered
from sparkfleet.values import Value

CONNECT_S = 10
SILENT_S = 60
"""A sender that says nothing for this long is gone."""
_SAID_CHARACTERS = 400


class From(Value):
    """One way to the sender: its address and port, and the address of ours to leave by ("": the kernel's choice)."""

    address: str
    port: int
    bind: str = ""


class FetchRequest(Value):
    """What to copy, and from where. Files are dealt out over all ways in `sources`."""

    manifest: Manifest
    revision: str = "main"
    cache: str = ""
    sources: tuple[From, ...]
    secret: str = Field(repr=False)
    streams: int = STREAMS
    reserve_bytes: int = RESERVE_BYTES


def work(request: FetchRequest, reporter: Reporter) -> Value:
    """What became of it."""
    return asyncio.run(_work(request, reporter))


async def _work(request: FetchRequest, reporter: Reporter) -> Value:
    rsync = shutil.which("rsync")
    if rsync is None:
        raise no_rsync()
    manifest = request.manifest
    place = place_of(manifest.kind, manifest.name, request.cache)
    if isinstance(place, HubPlace):
        place.note(manifest)

    async def get(file: File, part: Path, stream: int) -> None:
        if (size_of(part) or 0) > file.size:
            part.unlink()  # --append would take it for whole
        await _run(
            command(rsync, request.sources[stream % len(request.sources)], manifest, file, part),
            request.secret,
        )

    arrival = Arrival(
        place,
        manifest,
        get,
        reporter,
        streams=max(request.streams, len(request.sources)),
        reserve_bytes=request.reserve_bytes,
    )
    return await arrival.run(request.revision)


def command(rsync: str, source: From, manifest: Manifest, file: File, part: Path) -> tuple[str, ...]:
    """rsync for one file. It appends to what is there: a SHA of the whole file is taken afterwards."""
    host = f"[{source.address}]" if ":" in source.address else source.address
    path = f"blobs/{file.digest}" if manifest.kind == "hub" else file.path
    return (
        rsync,
        "--inplace",
        "--append",
        "--copy-links",
        f"--timeout={SILENT_S}",
        f"--contimeout={CONNECT_S}",
        *((f"--address={source.bind}",) if source.bind else ()),
        f"rsync://{USER}@{host}:{source.port}/{MODULE}/{path}",
        str(part),
    )


async def _run(argv: tuple[str, ...], secret: str) -> None:
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "RSYNC_PASSWORD": secret, "LC_ALL": "C"},
        preexec_fn=tethered(os.getpid()),
    )
    try:
        _, said = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise _failed(child.returncode, said.decode(errors="replace").strip()[:_SAID_CHARACTERS])


def _failed(code: int, said: str) -> StagingError:
    if "No space left" in said:
        return StagingError(
            "the disk is full.", means="What has arrived is kept.", do="Make room: `sparkfleet models prune`."
        )
    return StagingError(
        f"rsync ended with {code}: {shown(said.splitlines()[0]) if said else 'it said nothing'}.",
        means="The copy was cut; what has arrived is kept, and the next run goes on from there.",
        do="Run it again. If it happens again, `sparkfleet doctor` checks the rails.",
    )


def main() -> int:
    """Entry point."""
    return program(FetchRequest, work)


if __name__ == "__main__":
    sys.exit(main())
