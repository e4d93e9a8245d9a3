"""Failure of a lab."""

from __future__ import annotations

from sparkfleet.errors import SparkfleetError


class LabError(SparkfleetError):
    """The lab cannot be made, does not exist, or refused a request."""
