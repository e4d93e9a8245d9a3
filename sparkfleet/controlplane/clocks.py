"""The clocks that the controller and its parts read: the machine's, or a simulation's."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkfleet.controlplane.policy.state import Now

Clocks = Callable[[], Now]


def read_clocks() -> Now:
    """The current moment."""
    return Now(unix=time.time(), steady=time.monotonic())
