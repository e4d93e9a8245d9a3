"""Errors of a node's program as its caller reads them."""

import errno
import io
import json
import sys
from types import SimpleNamespace

from sparkfleet.staging.agent.protocol import program
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
