from collections.abc import Callable
from datetime import datetime

import pytest

from sparkfleet.cli import times
from sparkfleet.cli.times import seconds_of, time_ago, time_ahead
from sparkfleet.errors import SpecError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604800), ("2w", 1209600)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1.5h", "1h30m", "9" * 20 + "h", "soon"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(SpecError, match="is no time"):
        seconds_of(text)


def test_a_span_is_counted_from_now_and_a_date_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times.time, "time", lambda: 1_000_000.0)
    assert (time_ago("2h"), time_ahead("2h")) == (992_800.0, 1_007_200.0)
    assert time_ago("2026-11-28T10:00") == datetime(2026, 11, 28, 10).timestamp()
    assert time_ago("2026-11-28 10:00:30") == datetime(2026, 11, 28, 10, 0, 30).timestamp()
    assert time_ago("2026-11-28T10:00Z") == 1_795_860_000.0


def test_another_form_has_those_that_are_read() -> None:
    with pytest.raises(SpecError, match='"yesterday" is no time') as caught:
        time_ago("yesterday")
    assert caught.value.do == "Expected 2h, 3d, or a date such as 2027-01-31 or 2027-01-31T10:00."


@pytest.mark.parametrize("read", [time_ago, time_ahead])
def test_a_span_beyond_the_calendar_is_refused(read: Callable[[str], float]) -> None:
    """A key until then was made, and `keys list` ended with a traceback from then on."""
    with pytest.raises(SpecError, match='"999999999w" is in no year of the calendar'):
        read("999999999w")
