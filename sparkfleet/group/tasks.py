"""Ends tasks of a group's actor."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and returns when they have ended: none of them reports after this."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
