"""The end of the boot before, from journald's last lines."""

import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.last_boot import LINES, SIGNS, ReadLastBoot

AT = 1_764_500_000.25
SHUTDOWNS = (
    "systemd-journald[412]: Journal stopped",
    "systemd-shutdown[1]: Sending SIGTERM to remaining processes...",
    "systemd[1]: Reached target reboot.target - System Reboot.",
)
KERNEL = {
    "a fatal error of PCIe": "pcieport 0000:00:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "a processor that hung in the kernel": "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [irq/70-aerdrv:201]",
    "a panic of the kernel": "Kernel panic - not syncing: Oops: Fatal exception",
    "a critical temperature": "thermal thermal_zone3: acpitz: critical temperature reached",
    "failed allocations of the GPU's driver": "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]",
    "processes killed for lack of memory": "Out of memory: Killed process 4321 (VLLM::Worker)",
    "errors of the GPU (Xid)": "NVRM: Xid (PCI:000f:01:00): 79, pid=4321",
}


def log(*lines):
    return "".join(f"{AT + number:.6f} {line}\n" for number, line in enumerate(lines))


def test_a_log_that_ends_in_anything_is_no_shutdown():
    found = ReadLastBoot.answer(0, log("kernel: eth0: link up", "CRON[71]: (root) CMD (hourly)"), "")
    assert (found.in_order, found.ended_at, found.signs) == (False, pytest.approx(AT + 1), ())


@pytest.mark.parametrize("line", SHUTDOWNS)
def test_a_shutdown_is_in_order(line):
    assert ReadLastBoot.answer(0, log("kernel: eth0: link up", line), "").in_order


@pytest.mark.parametrize("meaning", SIGNS)
def test_each_error_of_the_kernel_has_its_meaning(meaning):
    found = ReadLastBoot.answer(0, log(f"kernel: {KERNEL[meaning]}", "CRON[71]: hourly"), "")
    assert meaning in found.signs


def test_a_first_boot_has_none_before_it():
    words = "Data from the specified boot (-1) is not available: No such boot ID in journal\n"
    assert ReadLastBoot.answer(1, "", words).in_order


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (
            0,
            log("x: Journal stopped"),
            "Hint: You are currently not seeing messages from other users and the system.",
        ),
        (1, "", "No journal files were opened due to insufficient permissions."),
        (1, "", "Failed to open the journal: Input/output error"),
        (0, "-- No entries --\n", ""),
    ],
)
def test_a_log_that_cannot_be_read_is_no_shutdown_and_no_power_cut(code, out, err):
    with pytest.raises(FactError):
        ReadLastBoot.answer(code, out, err)


def test_only_the_last_lines_count():
    """A reboot of long before is not the end of this boot."""
    found = ReadLastBoot.parse(log("systemd-journald[1]: Journal stopped", *["x: y"] * LINES))
    assert not found.in_order
