"""`python -m sparkfleet.staging.agent.rsync_fetch`, on a node: copies missing files from another node, over its rails."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field

from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.agent.rsync_serve import MODULE, USER, no_rsync
from sparkfleet.staging.agent.transfer import RESERVE_BYTES, STREAMS, Arrival
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.parent_death import tethered
from sparkfleet.staging.storage_layout import HubPlace, note_directory, place_of, size_of
from sparkfleet.values import Value

CONNECT_S = 10
SILENT_S = 30
"""A sender without data for this long counts as gone."""
_SHOWN_CHARACTERS = 400
_CUT = frozenset((10, 12, 30, 35))
"""Exit codes of rsync for a connection that failed, broke or timed out (rsync(1), EXIT VALUES)."""


class From(Value):
    """One path to the sender: its address and port, and our local address ("": the kernel's choice).

    `lan_address` is this node's address in the inventory, the only one that the sender accepts on the LAN: it is our local
    address if it is one of this node, which neither a name nor an address that a router translates is.
    """

    address: str
    port: int
    bind: str = ""
    lan_address: str = ""


class FetchRequest(Value):
    """Copy order: files, and their sources. Files are spread over all routes in `sources`."""

    manifest: Manifest
    revision: str = "main"
    cache: str = ""
    sources: tuple[From, ...]
    secret: str = Field(repr=False)
    streams: int = STREAMS
    reserve_bytes: int = RESERVE_BYTES


def work(request: FetchRequest, reporter: LineReporter) -> Value:
    """Copy the missing files."""
    return asyncio.run(_work(request, reporter))


async def _work(request: FetchRequest, reporter: LineReporter) -> Value:
    rsync = shutil.which("rsync")
    if rsync is None:
        raise no_rsync()
    manifest = request.manifest
    place = place_of(manifest.kind, manifest.name, request.cache)
    if isinstance(place, HubPlace):
        place.note(manifest)
    else:
        note_directory(manifest, request.cache)

    ways = _Ways(rsync, request, reporter)
    arrival = Arrival(
        place,
        manifest,
        ways.get,
        reporter,
        streams=max(request.streams, len(request.sources)),
        reserve_bytes=request.reserve_bytes,
    )
    return await arrival.run(request.revision)


class _Ways:
    """Spreads files over the paths to the sender, and drops a path that fails."""

    def __init__(self, rsync: str, request: FetchRequest, reporter: LineReporter) -> None:
        self._rsync = rsync
        self._request = request
        self._reporter = reporter
        self._open = [source.model_copy(update={"bind": local_address(source)}) for source in request.sources]

    async def get(self, file: File, part: Path, stream: int) -> None:
        """See `transfer.Get`."""
        while True:
            if (size_of(part) or 0) > file.size:
                part.unlink()  # --append would accept it as complete
            way = self._open[stream % len(self._open)]
            code, output = await _run(
                command(self._rsync, way, self._request.manifest, file, part), self._request.secret
            )
            if not code:
                return
            if code not in _CUT or not self._others(way):
                raise _failed(code, output)
            self._give_up(way)

    def _others(self, way: From) -> bool:
        return any(other != way for other in self._open)

    def _give_up(self, way: From) -> None:
        if way in self._open:
            self._open.remove(way)
            self._reporter.note(f"the rail to {way.address} carries no data: continuing over the others.")


def local_address(source: From) -> str:
    """Our address for connections to a source; "": the kernel's choice."""
    if source.bind or not source.lan_address:
        return source.bind
    try:
        own, theirs = ip_address(source.lan_address), ip_address(source.address)
        if own.version != theirs.version:
            return ""
        with socket.socket(
            socket.AF_INET6 if own.version == 6 else socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:
            probe.bind((str(own), 0))
    except (ValueError, OSError):  # a name, or no address of this node
        return ""
    return str(own)


def command(rsync: str, source: From, manifest: Manifest, file: File, part: Path) -> tuple[str, ...]:
    """Command of rsync for one file. It appends to a partial file; the whole file's digest is checked afterwards."""
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


async def _run(argv: tuple[str, ...], secret: str) -> tuple[int, str]:
    """Exit code and start of stderr."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "RSYNC_PASSWORD": secret, "LC_ALL": "C"},
        preexec_fn=tethered(os.getpid()),
    )
    try:
        _, output = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, output.decode(errors="replace").strip()[:_SHOWN_CHARACTERS]


def _failed(code: int, output: str) -> StagingError:
    if "No space left" in output:
        return StagingError(
            "the disk is full.",
            means="Transferred bytes are kept.",
            do="Free disk space: `sparkfleet models prune` removes models that no deployment uses.",
        )
    return StagingError(
        f"rsync ended with exit code {code}: {shown(output.splitlines()[0]) if output else 'no output'}.",
        means="The copy was interrupted; transferred bytes are kept, and the next run continues there.",
        do="Run it again. If it fails again, check the rails: `sparkfleet doctor`.",
    )


def main() -> int:
    """Entry point."""
    return program(FetchRequest, work)


if __name__ == "__main__":
    sys.exit(main())
