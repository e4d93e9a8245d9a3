"""Output of `ethtool` for one netdev: link, error correction, driver counters."""

from __future__ import annotations

import re

from sparkfleet.hostfacts.fact import text, unexpected_output
from sparkfleet.values import Value


class LinkSettings(Value):
    """Speed and state of one netdev, as its driver reports them."""

    speed_mb_per_s: int | None
    """Megabits per second; None if there is no link."""
    link: bool | None
    """True if a link is detected; None if the driver does not report it."""
    reason: str = ""
    """Reason for no link, such as "No cable"."""


class ReadLinkSettings:
    """`ethtool NETDEV`. Without root it prints all of this, and an error on stderr that can be ignored."""

    def __init__(self, netdev: str) -> None:
        self.argv = ("ethtool", netdev)

    @staticmethod
    def parse(output: str) -> LinkSettings:
        """Settings from its `Name: value` lines. Raises FactError if there are none."""
        lines = _fields(output)
        if "speed" not in lines and "link detected" not in lines:
            raise unexpected_output("link settings", output)
        speed = re.match(r"([0-9]{1,9})Mb/s", lines.get("speed", ""))
        detected = re.match(r"(yes|no)(?: \((.{1,80})\))?", lines.get("link detected", ""))
        return LinkSettings(
            speed_mb_per_s=int(speed[1]) if speed else None,
            link=None if detected is None else detected[1] == "yes",
            reason=text((detected[2] or "") if detected else ""),
        )


class Fec(Value):
    """Active forward error correction of one netdev (`RS` on a healthy 200 Gb/s cable)."""

    active: tuple[str, ...]
    """Empty if there is none, as on a port without a cable."""


class ReadFec:
    """`ethtool --show-fec NETDEV`."""

    def __init__(self, netdev: str) -> None:
        self.argv = ("ethtool", "--show-fec", netdev)

    @staticmethod
    def parse(output: str) -> Fec:
        """FEC from the line `Active FEC encoding(s)`. Raises FactError without an active one."""
        lines = _fields(output)
        active = next((value for key, value in lines.items() if key.startswith("active fec")), None)
        if active is None:
            raise unexpected_output("FEC", output)
        return Fec(active=tuple(w for w in _words(active) if w.lower() != "none"))


def _fields(output: str) -> dict[str, str]:
    """`Name: value` lines by lower-case name."""
    pairs = (line.partition(":") for line in output.splitlines())
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


def _words(value: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[A-Za-z0-9_-]{1,32}", value))
