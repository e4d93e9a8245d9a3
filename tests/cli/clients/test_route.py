"""`sparkfleet route`: its lines."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sparkfleet.cli.clients import route as verb

LINE = {"finish_s": 0.0, "wait_s": 0.0, "prefill_s": 0.0, "decode_s": 0.0, "warm_tokens": 0}


def test_the_chosen_group_comes_first_and_those_left_out_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def explained(*_: object) -> dict[str, Any]:
        groups = [{"group": "tiny/g4/0", **LINE}, {"group": "https://example.org/v1", **LINE}]
        left_out = {"tiny/g5/1": "is not ready"}
        return {"model": "tiny", "group": "tiny/g4/0", "why": "idle", "groups": groups, "left_out": left_out}

    monkeypatch.setattr(verb, "open_session", lambda _: None)
    monkeypatch.setattr(verb, "explain_request", explained)
    app = typer.Typer()
    app.command()(verb.route)
    lines = CliRunner().invoke(app, ["-"], catch_exceptions=False).stdout.splitlines()
    assert lines[0] == "tiny → tiny/g4/0: idle"
    assert [line.split()[0] for line in lines[2:]] == ["tiny/g4/0", "https://example.org/v1", "tiny/g5/1:"]
