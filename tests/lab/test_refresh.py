"""The files in /sys, as soon as a change was made."""

from __future__ import annotations

import os
import signal

import pytest

from sparkfleet.lab import Lab, LabError
from sparkfleet.lab import state as states

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]


def test_sys_shows_a_change_as_soon_as_it_was_made(lab: Lab) -> None:
    device = "/sys/class/infiniband/rocep1s0f1/ports/1"
    for value, returned in [("missing", 1), ("ok", 0)] * 5:
        lab.set("spark1", {"gid.rocep1s0f1": value})
        assert lab.exec("spark1", ["cat", f"{device}/gid_attrs/types/3"]).returncode == returned
    for _ in range(3):
        lab.cut("spark1-spark2", 0)
        assert lab.exec("spark1", ["cat", f"{device}/state"]).stdout == "1: DOWN\n"
        lab.mend("spark1-spark2", 0)
        assert lab.exec("spark1", ["cat", f"{device}/state"]).stdout == "4: ACTIVE\n"


def test_a_change_that_a_stopped_node_cannot_show_is_an_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkfleet.lab.refresh._WAIT_S", 0.5)
    init = states.load(lab.name).inits["spark1"].pid
    os.kill(init, signal.SIGSTOP)
    try:
        with pytest.raises(LabError, match=f"(?s)spark1 does not show the change after.*{init}"):
            lab.set("spark1", speed="100000")
    finally:
        os.kill(init, signal.SIGCONT)
