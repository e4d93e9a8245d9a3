"""Copies over several rails: one that fails is dropped, and nothing wrong is taken for complete."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.rsync_fetch import FetchRequest, From, _run, _Ways
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import File, Manifest

FILE = File(path="f", size=4, digest="a" * 64)
RSYNC = """#!{python}
import os, sys
from pathlib import Path
*_, source, part = sys.argv
with open("{log}", "a") as log:
    log.write(source.split("@")[1].split(":")[0] + "\\n")
for address, code in {codes}.items():
    if address in source:
        print("rsync: it failed", file=sys.stderr)
        sys.exit(code)
had = Path(part).read_bytes() if os.path.exists(part) else b""
Path(part).write_bytes(had + b"new!"[len(had):])  # as --append does
"""


class Notes(LineReporter):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def note(self, text: str, *_: str) -> None:
        self.said.append(text)


class Rails:
    """Two rails to a sender, on which rsync ends with these exit codes."""

    def __init__(self, directory: Path, codes: dict[str, int] | None = None) -> None:
        self.log, rsync = directory / "log", directory / "rsync"
        rsync.write_text(RSYNC.format(python=sys.executable, log=self.log, codes=codes or {}))
        rsync.chmod(0o755)
        manifest = Manifest(kind="directory", name="/m", files=(FILE,))
        sources = tuple(From(address=address, port=1) for address in ("10.0.0.1", "10.0.1.1"))
        request = FetchRequest(manifest=manifest, sources=sources, secret="s" * 32)
        self.notes = Notes()
        self.ways = _Ways(str(rsync), request, self.notes)
        self.part = directory / "part"

    async def get(self, stream: int = 0) -> list[str]:
        """The addresses that were tried for one file."""
        await self.ways.get(FILE, self.part, stream)
        return self.log.read_text().split()


async def test_streams_take_turns_over_the_rails(tmp_path: Path) -> None:
    rails = Rails(tmp_path)
    await rails.get(0)
    assert await rails.get(1) == ["10.0.0.1", "10.0.1.1"]


async def test_a_rail_that_carries_no_data_is_dropped_with_a_note(tmp_path: Path) -> None:
    rails = Rails(tmp_path, {"10.0.0.1": 10})
    assert await rails.get() == ["10.0.0.1", "10.0.1.1"]
    assert rails.part.read_bytes() == b"new!"
    assert rails.notes.said == ["the rail to 10.0.0.1 carries no data: continuing over the others."]
    assert (await rails.get())[2:] == ["10.0.1.1"], "it is not tried again"


@pytest.mark.parametrize("codes", [{"10.0": 10}, {"10.0.0.1": 11}], ids=["every rail", "the disk"])
async def test_other_errors_and_the_last_rails_end_the_copy(tmp_path: Path, codes: dict[str, int]) -> None:
    rails = Rails(tmp_path, codes)
    with pytest.raises(StagingError, match=r"rsync ended with exit code 1[01]: 'rsync: it failed'"):
        await rails.get()


async def test_a_partial_file_that_is_too_long_is_fetched_anew(tmp_path: Path) -> None:
    rails = Rails(tmp_path)
    rails.part.write_bytes(b"too long")
    await rails.get()
    assert rails.part.read_bytes() == b"new!"


async def test_an_interrupted_copy_leaves_no_rsync(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(600)"
    copy = asyncio.create_task(_run((sys.executable, "-c", script), "s"))
    async with asyncio.timeout(20):
        while not (pid.exists() and pid.read_text().endswith(".")):
            await asyncio.sleep(0.01)
    copy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copy
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()[:-1]), 0)
