"""Waits for a file lock, apart from the locks: programs that only look at one do without asyncio, 0.02 s of their 0.15 s."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sparkfleet.staging.locks import try_lock

POLL_S = 0.2


@asynccontextmanager
async def alone(path: Path, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Hold the lock file `path`; `waiting` is called once if another process holds it.

    It uses flock as huggingface_hub does, so it also waits for downloads by other tools.
    """
    handle = try_lock(path)
    if handle is None:
        waiting()
    while handle is None:
        await asyncio.sleep(POLL_S)
        handle = try_lock(path)
    try:
        yield
    finally:
        os.close(handle)
