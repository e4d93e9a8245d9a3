from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from sparkfleet.controlplane.state.drained import DrainedGroup
from sparkfleet.controlplane.state.status import FleetStatus
from sparkfleet.errors import SpecError
from sparkfleet.fleet.clients import route as module
from sparkfleet.fleet.clients.route import STDIN, read_request

BODY = b'{"model": "tiny", "prompt": "a"}'


class Input:
    """Standard input with these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_request_of_a_file_or_of_standard_input(tmp_path, monkeypatch, is_file):
    (tmp_path / "request.json").write_bytes(BODY)
    monkeypatch.setattr(sys, "stdin", Input(BODY))
    assert read_request(tmp_path / "request.json" if is_file else STDIN) == ("/completions", BODY)


@pytest.mark.parametrize(("content", "what"), [(b"", "standard input is no JSON"), (b"{", "no JSON")])
def test_no_request_on_standard_input(monkeypatch, content, what):
    monkeypatch.setattr(sys, "stdin", Input(content))
    with pytest.raises(SpecError, match=what) as caught:
        read_request(STDIN)
    assert "sparkfleet route REQUEST.json" in caught.value.do


def test_a_file_that_is_not_there():
    with pytest.raises(SpecError, match="none cannot be read") as caught:
        read_request(Path("none"))
    assert "sparkfleet route REQUEST.json" in caught.value.do


def test_a_drained_group_is_not_only_one_that_is_not_ready():
    answer = {"left_out": {"tiny/g5/1": "is not ready", "tiny/g7/0": "is not ready"}}
    drained = DrainedGroup(deployment="tiny", generation=5, replica=1, who="me", since=0.0)
    module._name_drained(answer, FleetStatus.model_construct(drained_groups=(drained,)))
    assert answer["left_out"] == {
        "tiny/g5/1": "is drained: `sparkfleet undrain tiny/g5/1`",
        "tiny/g7/0": "is not ready",
    }
