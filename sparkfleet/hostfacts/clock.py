"""Clock of a node: its offset from this machine's, and whether a time service keeps it synchronised."""

from __future__ import annotations

import re

from sparkfleet.hostfacts.fact import Fact, unexpected_output
from sparkfleet.values import Value

_SECONDS = re.compile(r"\s{0,20}(\d{1,12})\.(\d{1,9})\s{0,20}", re.ASCII)


class ReadClock(Fact[float]):
    """Reads the time of a node, seconds since 1970."""

    argv = ("date", "+%s.%N")

    @staticmethod
    def parse(output: str) -> float:
        """Seconds and nanoseconds."""
        found = _SECONDS.fullmatch(output[:100])
        if found is None:
            raise unexpected_output("the time", output)
        return float(f"{found[1]}.{found[2]}")


class ClockOffset(Value):
    """Seconds by which a node's clock is ahead of this machine's; negative if it is behind."""

    ahead_s: float
    uncertainty_s: float
    """The node read its clock at some moment within twice this time."""

    @classmethod
    def of(cls, read: float, asked: float, answered: float) -> ClockOffset:
        """Offset from the node's time and this machine's, before and after the request."""
        return cls(ahead_s=read - (asked + answered) / 2, uncertainty_s=max(0.0, (answered - asked) / 2))


class TimeSync(Value):
    """State of the clock's synchronisation; None: not known."""

    synchronised: bool | None
    enabled: bool | None = None


class ReadTimeSync(Fact[TimeSync]):
    """Clock state as systemd reports it; it includes chrony, since it asks the kernel."""

    argv = ("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized")

    @staticmethod
    def parse(output: str) -> TimeSync:
        """`NTP=yes` and `NTPSynchronized=yes`."""
        found = dict(line.split("=", 1) for line in output.splitlines()[:50] if "=" in line)
        if "NTPSynchronized" not in found:
            raise unexpected_output("the state of the clock", output)
        return TimeSync(synchronised=_yes(found["NTPSynchronized"]), enabled=_yes(found.get("NTP", "")))


def _yes(word: str) -> bool | None:
    return {"yes": True, "no": False}.get(word.strip())


class ReadChrony(Fact[TimeSync]):
    """The same from chrony, for nodes without systemd."""

    argv = ("chronyc", "-n", "tracking")

    @staticmethod
    def parse(output: str) -> TimeSync:
        """The line `Leap status : Normal`."""
        found = re.search(r"^Leap status[ \t]{0,40}: (.{1,40})$", output, re.MULTILINE)
        if found is None:
            raise unexpected_output("the state of the clock", output)
        return TimeSync(synchronised=found[1].strip() != "Not synchronised", enabled=True)
