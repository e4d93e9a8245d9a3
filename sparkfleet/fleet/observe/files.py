"""Writes the files with which Prometheus, Alertmanager and Grafana watch a fleet."""

from __future__ import annotations

from pathlib import Path

from sparkfleet.errors import SpecError
from sparkfleet.fleet.session import Session
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.telemetry.observe_files import OWNERS, ObservePlace, observe_files
from sparkfleet.values import Value


class WrittenFiles(Value):
    """Files of one `observe config`, by their paths in the directory."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    kept: tuple[str, ...]
    """Files of the owner's that differ from ours and were left as they are."""


async def place_of(session: Session) -> ObservePlace:
    """Addresses and paths of the fleet's head. Raises ControlError if no controller answers."""
    async with await session.controller() as client:
        api = client.address.api
    paths = FleetPaths(Path(await session.head_root()))
    return ObservePlace(api=api, token_file=str(paths.metrics_token), fleet=session.inventory.fleet)


def write_files(directory: Path, place: ObservePlace) -> WrittenFiles:
    """Writes the files. Other files of the directory are left alone. Raises SpecError if the directory cannot be written."""
    written, unchanged, kept = [], [], []
    for name, text in observe_files(place).items():
        path = directory / name
        try:
            found = path.read_text() if path.exists() else None
            if found == text:
                unchanged.append(name)
            elif found is not None and name in OWNERS:
                kept.append(name)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text.encode(), mode=0o644)
                written.append(name)
        except OSError as error:
            raise SpecError(
                f"{path} cannot be written: {error.strerror or error}.",
                means=f"{len(written)} files were written before." if written else "Nothing was written.",
                do="Give a directory that you may write to.",
            ) from error
    return WrittenFiles(written=tuple(written), unchanged=tuple(unchanged), kept=tuple(kept))
