"""Reads times that people type: a span such as 12h, or a date."""

from __future__ import annotations

import re
import time
from datetime import datetime

from sparkfleet.errors import SpecError
from sparkfleet.specs.fields import quote

_SPAN = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhdw]|(?<=0))")
_UNITS = {"": 0, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds_of(text: str) -> float:
    """A time such as 30m, 12h or 7d in seconds. Raises SpecError for another form."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise SpecError(
            f"{quote(text)} is no time.", do="Expected a number with s, m, h, d or w, such as 12h, or 0."
        )
    return int(match["number"]) * _UNITS[match["unit"]]


def time_ago(text: str) -> float:
    """The moment (Unix seconds) of a date in local time, or so long before now. Raises SpecError for another form."""
    return _moment(text, -1, "2h, 3d, or a date such as 2027-01-31 or 2027-01-31T10:00")


def time_ahead(text: str) -> float:
    """The moment (Unix seconds) of a date in local time, or so long after now. Raises SpecError for another form."""
    return _moment(text, 1, "12h, 30d, or a date such as 2027-01-31")


def _moment(text: str, sign: int, expected: str) -> float:
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        try:
            at = time.time() + sign * seconds_of(text)
            datetime.fromtimestamp(at)  # what is stored is shown as a date
        except SpecError as error:
            raise SpecError(error.what, do=f"Expected {expected}.") from None
        except (ValueError, OverflowError, OSError):
            raise SpecError(
                f"{quote(text)} is in no year of the calendar.", do=f"Expected {expected}."
            ) from None
        return at
