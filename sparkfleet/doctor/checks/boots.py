"""The boot before this one: ended by a shutdown, or by a loss of power, a freeze or a panic."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import CheckFault, warning
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.clock import ClockOffset
from sparkfleet.hostfacts.last_boot import LastBoot
from sparkfleet.units import moment_words


@node_check(
    "boot-before",
    "the boot before this one ended by a shutdown",
    source="journald's own last line; MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 146",
)
def boot_before(
    node: NodeSnapshot, last_boot: LastBoot, clock: ClockOffset, fleet: FleetReadings
) -> Iterator[CheckFault]:
    """Reports an end without a shutdown for some days."""
    if last_boot.in_order or last_boot.ended_at is None:
        return
    at = last_boot.ended_at - clock.ahead_s
    if fleet.read_at is not None and fleet.read_at - at > thresholds.ENDED_S:
        return
    seen = f", and before that had {', '.join(last_boot.signs)}" if last_boot.signs else ""
    yield warning(
        f"{node.name}: it ended without a shutdown at {moment_words(at)}{seen}",
        means="The power was off, or it froze. A Spark that is too hot, at 104.8 °C, goes off without a line in its log;"
        " one whose memory is full freezes.",
        do=(
            "sparkfleet events --since 7d   # its last readings: temperature and memory",
            "journalctl -b -1 -e   # on the node: its last lines",
            "sudo nvidia-smi -lgc 0,2000   # on the node, if it was hot",
        ),
    )


CHECKS: tuple[Check, ...] = (boot_before,)
