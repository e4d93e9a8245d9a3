"""The file with the token with which Prometheus reads the engines' metrics."""

from __future__ import annotations

import os

from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def write_metrics_token(paths: FleetPaths, token: str) -> None:
    """Write into the file itself if it is there: a Prometheus in a container has this file, not its name.

    Raises OSError.
    """
    if not paths.metrics_token.is_file():
        write_atomically(paths.metrics_token, token.encode())
        return
    with paths.metrics_token.open("r+b", buffering=0) as file:
        file.write(token.encode())
        file.truncate()
        os.fsync(file.fileno())
