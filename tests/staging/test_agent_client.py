from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fake_channel import FakeChannel

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Completed
from sparkfleet.staging.agent_client import call
from sparkfleet.staging.errors import HubUnreachable, StagingError
from sparkfleet.values import Value


class Request(Value):
    secret: str = "hidden-from-argv"


class Answer(Value):
    number: int


PROGRAM = ("/env/bin/python", "scan")


def said(*lines, exit_code=0, stderr=""):
    """A node that prints these lines."""
    stdout = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    completed = Completed(argv=("python",), exit_code=exit_code, stdout=stdout, stderr=stderr)
    return FakeChannel("n1", {("/env/bin/python",): completed})


async def test_the_answer_and_the_lines_before_it():
    heard = []
    channel = said(
        "Welcome to n1!\n",
        {"event": "progress", "done_bytes": 1, "total_bytes": 2},
        "{not json\n",
        {"event": "result", "value": {"number": 7}},
    )
    assert (await call(channel, PROGRAM, Request(), Answer, on_line=heard.append)).number == 7
    assert [line.event for line in heard] == ["progress", "result"]


async def test_the_request_is_on_stdin_and_not_in_the_argument_list():
    channel = said({"event": "result", "value": {"number": 7}})
    await call(channel, PROGRAM, Request(), Answer)
    (asked,) = channel.calls
    assert asked.argv == ("/env/bin/python", "-P", "-m", "sparkfleet.staging.agent.scan")
    assert b"hidden-from-argv" in asked.stdin
    assert "hidden-from-argv" not in " ".join((*asked.argv, *asked.env.values()))


async def test_an_error_keeps_its_kind_and_its_remedy():
    line = {"event": "error", "kind": "HubUnreachable", "what": "no way", "means": "m", "do": "d"}
    with pytest.raises(HubUnreachable) as refused:
        await call(said(line, exit_code=1), PROGRAM, Request(), Answer)
    assert (refused.value.what, refused.value.means, refused.value.do) == ("n1: no way", "m", "d")


@pytest.mark.parametrize("kind", ["", "SystemExit", "../x"])
async def test_an_unknown_kind_of_error_is_one_of_staging(kind):
    with pytest.raises(StagingError):
        await call(said({"event": "error", "kind": kind, "what": "x"}), PROGRAM, Request(), Answer)


@pytest.mark.parametrize("value", [None, [], {"number": "7"}, {"number": 7, "more": 1}, "x"])
async def test_an_answer_of_another_version_is_an_error(value):
    with pytest.raises(StagingError, match="its answer is invalid") as refused:
        await call(said({"event": "result", "value": value}), PROGRAM, Request(), Answer)
    assert "sparkfleet up" in refused.value.do


async def test_a_node_without_sparkfleet():
    channel = said(exit_code=1, stderr="python: No module named sparkfleet\n")
    with pytest.raises(StagingError, match="No module named sparkfleet") as refused:
        await call(channel, PROGRAM, Request(), Answer)
    assert "sparkfleet up" in refused.value.do


async def test_a_node_that_cannot_be_reached():
    channel = FakeChannel("n1", {("/env/bin/python",): NodeError("n1 does not answer")})
    with pytest.raises(NodeError, match="does not answer"):
        await call(channel, PROGRAM, Request(), Answer)


async def test_a_line_of_another_version_is_passed_over():
    heard = []
    channel = said(
        {"event": "note", "color": "red"}, {"event": "dance"}, {"event": "result", "value": {"number": 7}}
    )
    await call(channel, PROGRAM, Request(), Answer, on_line=heard.append)
    assert [line.event for line in heard] == ["result"]


def test_programs_on_nodes_load_nothing_of_the_planner_and_of_engines():
    """Staging starts several on each node, also on those that serve: a third of their start was for what they never use."""
    code = (
        "import pkgutil, sys\n"
        "from importlib import import_module\n"
        "from sparkfleet.staging import agent, hub\n"
        "for one in pkgutil.iter_modules(agent.__path__): import_module(f'{agent.__name__}.{one.name}')\n"
        "unused = ('sparkfleet.planner', 'sparkfleet.engines', 'sparkfleet.specs.deployment')\n"
        "print(*(name for name in sys.modules if name.startswith(unused)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
