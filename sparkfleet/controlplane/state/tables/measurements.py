"""Measured values of running groups."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.controlplane.state.store_rows import Measurement
from sparkfleet.controlplane.state.tables.database import Database

KEEP_MEASUREMENTS = 1000
"""Measurements kept of a deployment: at up to six per start those of its last 160 starts or more, in about 100 KB."""


class MeasurementTable:
    """The newest measurements of each deployment.

    Args:
        database: keeps them.
        keep: number of newest measurements of each deployment that are kept.
    """

    def __init__(self, database: Database, keep: int) -> None:
        self._db = database
        self._keep = keep

    def add(self, deployment: str, generation: int, subject: str, values: Mapping[str, float]) -> None:
        """Stores measurements of a group; the deployment's oldest beyond the kept ones are dropped."""
        at = self._db.now()
        with self._db.transaction():
            self._db.executemany(
                "INSERT INTO measurements (at, deployment, generation, subject, name, value)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(at, deployment, generation, subject, name, value) for name, value in values.items()],
            )
            self._db.execute(
                "DELETE FROM measurements WHERE deployment = ? AND id <= (SELECT id FROM measurements"
                " WHERE deployment = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (deployment, deployment, self._keep),
            )

    def of(self, deployment: str, generation: int | None = None) -> tuple[Measurement, ...]:
        """Measurements of a deployment, oldest first."""
        rows = self._db.execute(
            "SELECT at, deployment, generation, subject, name, value FROM measurements"
            " WHERE deployment = ? AND (? IS NULL OR generation = ?) ORDER BY id",
            (deployment, generation, generation),
        )
        return tuple(Measurement(**dict(zip(Measurement.model_fields, row, strict=True))) for row in rows)
