"""Clocks: equal on all nodes, and kept synchronised."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import CheckFault, error, not_known, warning
from sparkfleet.doctor.snapshot import NodeSnapshot
from sparkfleet.hostfacts.clock import ClockOffset, TimeSync

SET_NTP = "sudo timedatectl set-ntp true"


@node_check(
    "clock-skew",
    "the clock agrees with this machine's",
    source="chosen here: TLS and tokens fail with larger differences",
)
def clock_skew(node: NodeSnapshot, clock: ClockOffset) -> Iterator[CheckFault]:
    """Reports a difference that the time of the answer cannot explain."""
    if abs(clock.ahead_s) - clock.uncertainty_s > thresholds.CLOCK_SKEW_S:
        way = "ahead of" if clock.ahead_s > 0 else "behind"
        yield error(
            f"{node.name}: the clock is {abs(clock.ahead_s):.1f} s {way} this machine's",
            means="TLS certificates and tokens are refused, and events of the fleet appear in the wrong order.",
            do=(SET_NTP, "timedatectl   # on both machines: compare with the real time"),
            uncertainty_s=f"{clock.uncertainty_s:.2f}",
        )


@node_check(
    "clock-synchronised",
    "the clock is synchronised",
    rules=("docker-clock-skew",),
    source="knowledge/rules/rules.yaml docker-clock-skew",
)
def clock_synchronised(node: NodeSnapshot, time_sync: TimeSync) -> Iterator[CheckFault]:
    """NTP."""
    if time_sync.synchronised is None:
        yield not_known(
            f"{node.name}: whether the clock is synchronised is not known, because timedatectl has no answer"
        )
    if time_sync.synchronised is False:
        yield warning(
            f"{node.name}: the clock is not synchronised",
            means="The clock drifts. With a wrong clock, image pulls fail.",
            do=SET_NTP if not time_sync.enabled else "timedatectl timesync-status   # shows the NTP server",
        )


CHECKS: tuple[Check, ...] = (clock_skew, clock_synchronised)
