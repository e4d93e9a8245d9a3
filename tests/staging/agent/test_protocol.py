"""Errors of a node's program as its caller reads them."""

import errno
import io
import json
import sys
from types import SimpleNamespace

from sparkfleet.staging.agent import protocol
from sparkfleet.staging.agent.protocol import EVERY_S, LineReporter, program
from sparkfleet.staging.agent.scan import LookRequest


def test_a_directory_of_root_has_its_reason_and_the_command(monkeypatch, capfd):
    """~/.cache/huggingface as docker makes it for `-v ~/.cache/huggingface:…` of a playbook."""

    def work(request, reporter):
        raise PermissionError(errno.EACCES, "Permission denied", "/home/nvidia/.cache/huggingface/hub")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
    assert program(LookRequest, work) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["what"] == "/home/nvidia/.cache/huggingface/hub: Permission denied."
    assert "A container that ran as root" in told["means"]
    assert "`sparkfleet doctor` has the command" in told["do"]


def test_progress_is_reported_at_intervals_and_at_the_end(monkeypatch, capfd):
    """A line is also what ends a copy whose caller is gone, so there has to be one now and then."""
    at_s = 1000.0
    monkeypatch.setattr(protocol.time, "monotonic", lambda: at_s)
    reporter = LineReporter()
    for step in range(6):
        reporter.progress(step, 10)
        at_s += EVERY_S / 2
    reporter.progress(10, 10, now=True)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["event"], one["done_bytes"]) for one in lines] == [
        ("progress", 0),
        ("progress", 2),
        ("progress", 4),
        ("progress", 10),
    ]
