"""Failure of a lab."""

from __future__ import annotations

from sparkfleet.errors import SparkfleetError


class LabError(SparkfleetError):
    """The lab cannot be made, is not there, or refused."""
