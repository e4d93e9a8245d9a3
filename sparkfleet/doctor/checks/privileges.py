"""Privileges of the login: pin memory, keep services running."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, node_check
from sparkfleet.doctor.findings import CheckFault, error, not_known, warning
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.hostfacts.privileges import Limit, Services, User

LIMITS_FILE = "/etc/security/limits.d/90-sparkfleet.conf"


@node_check(
    "memlock",
    "RDMA may pin the memory that it needs",
    rules=("memlock-limit",),
    source="knowledge/rules/rules.yaml memlock-limit",
)
def memlock(node: NodeSnapshot, locked_memory: Limit, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Checks the limit only if a link of the node declares RDMA."""
    needs_rdma = any(rail.is_rdma for link in fleet.links if node.name in link.nodes for rail in link.rails)
    is_enough = locked_memory.allows(thresholds.LOCKED_BYTES)
    if needs_rdma and not is_enough and not (node.user and node.user.is_root):
        yield error(
            f"{node.name}: at most {locked_memory.most / 2**20:,.4g} MiB may be pinned (memlock)",
            means='RDMA cannot register its buffers: NCCL fails with "Cannot allocate memory", and the other node'
            " reports the error.",
            do=(
                f"printf '* hard memlock unlimited\\n* soft memlock unlimited\\n' | sudo tee {LIMITS_FILE}",
                "exit   # then log in again; repeat on all nodes",
                "sudo reboot   # if the fleet is up: its service keeps the old limit until then",
            ),
        )


@node_check("open-files", "the limit of open files is high enough", source="Ray's documentation: 65,536")
def enough_open_files(node: NodeSnapshot, open_files: Limit) -> Iterator[CheckFault]:
    """Checks the hard limit."""
    if not open_files.is_unlimited and open_files.most < thresholds.OPEN_FILES:
        yield warning(
            f"{node.name}: at most {open_files.most} files may be open",
            means="Ray and a busy gateway run out of file descriptors.",
            do=f"printf '* hard nofile 1048576\\n' | sudo tee -a {LIMITS_FILE}",
        )


@node_check(
    "linger",
    "services of this user outlive its logins",
    rules=("logind-removeipc",),
    source="knowledge/rules/rules.yaml logind-removeipc",
)
def linger(node: NodeSnapshot, services: Services, user: User) -> Iterator[CheckFault]:
    """Checks linger: without it Ray ends with the last login, and does not start after a reboot."""
    if services.systemd and not services.linger and not user.is_root:
        yield warning(
            f"{node.name}: systemd stops all processes of {user.name} when the last session ends",
            means="Ray and engines end with the login and do not start after a reboot.",
            do=f"sudo loginctl enable-linger {user.name}",
        )


@node_check("starts-at-boot", "systemd or cron starts the fleet at boot")
def starts_at_boot(node: NodeSnapshot, services: Services) -> Iterator[CheckFault]:
    """Requires systemd, or cron's @reboot."""
    if not services.systemd and not services.cron:
        yield warning(
            f"{node.name} has neither systemd nor cron",
            means="After a reboot of this node, `sparkfleet up` has to be run by hand.",
            do="sudo apt install cron",
        )


@node_check(
    "zones-cool",
    "no thermal zone is too hot",
    rules=("ec-fan-regression",),
    source="knowledge/rules/rules.yaml ec-fan-regression",
)
def zones_cool(node: NodeSnapshot, services: Services) -> Iterator[CheckFault]:
    """Checks the hottest thermal zone."""
    if services.hottest_c is None:
        yield not_known(
            f"{node.name}: temperatures are not known, because the kernel reports no thermal zone"
        )
    elif services.hottest_c >= thresholds.HOT_ZONE_C:
        yield warning(
            f"{node.name}: the hottest thermal zone is at {services.hottest_c:.0f} °C",
            means="The embedded controller (EC) sets the fans; its firmware 0x0300… runs them too slowly.",
            do=("fwupdmgr get-devices   # EC version", "sudo nvidia-smi -lgc 200,2150"),
        )


CHECKS: tuple[Check, ...] = (memlock, enough_open_files, linger, starts_at_boot, zones_cool)
