"""Errors of the program on a node, with the node's name and the command to type."""

import errno
import json
import os

import pytest

from sparkfleet.controlplane.api.api_models import SecretsRequest
from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.node_access import FoundState
from sparkfleet.fleet.node_programs import NodePrograms
from sparkfleet.install import environment
from sparkfleet.install.environment import NodeEnvironments
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.unreachable import Suspected
from sparkfleet.specs.load import parse_inventory


class Access:
    """A head whose program ends in one way."""

    def __init__(self, answer=None, stderr=""):
        self.inventory = parse_inventory("fleet: home\nhead: a\nnodes: {a: {address: local}}\n", "i.yaml")
        self.channels = {"a": self}
        self._answer = answer
        self._stderr = stderr
        self.python = None

    async def state(self, node):
        if self.python == "unreachable":
            raise NodeError("a: no answer")
        return FoundState(python=self.python)

    def state_dir(self, node):
        return f"/state/{node}"

    async def run(self, argv, **_):
        out = "" if self._answer is None else json.dumps(self._answer)
        return Completed(
            argv=tuple(argv), exit_code=int(self._answer is None), stdout=out, stderr=self._stderr
        )


def programs(access, monkeypatch):
    made = NodePrograms(access)

    async def pythons():
        return {"a": "python"}

    monkeypatch.setattr(made, "pythons", pythons)
    return made


REMEDIES = {
    errno.ENOSPC: "Free disk space on a",
    errno.EROFS: "Make that file system writable on a",
    errno.EISDIR: "Move that directory away on a",
    errno.EACCES: "Give the user of the fleet the permission for it on a",
}


@pytest.mark.parametrize(("number", "remedy"), REMEDIES.items())
async def test_a_disk_has_its_node_and_a_remedy(monkeypatch, number, remedy):
    parts = {"what": "/state/a/token: No.", "means": "The change may be half done.", "do": ""}
    made = programs(Access({"error": parts, "errno": number}), monkeypatch)
    with pytest.raises(ControlError) as caught:
        await made.secrets_step("a", SecretsRequest(fleet="home", step="begin"))
    assert caught.value.what == "a: /state/a/token: No."
    assert caught.value.do == f"{remedy}, then `sparkfleet keys rotate-internal`."


async def test_a_program_that_cannot_write_has_a_remedy(monkeypatch):
    full = os.strerror(errno.ENOSPC)
    made = programs(Access(stderr=f"/state/a: {full}\n"), monkeypatch)
    with pytest.raises(NodeError) as caught:
        await made.secrets_step("a", SecretsRequest(fleet="home", step="begin"))
    assert caught.value.do == "Free disk space on a, then run the command again."


async def test_a_name_that_is_no_text_is_an_error(monkeypatch):
    """`sparkfleet restore -y $'\\xff'` ended with a traceback."""
    made = programs(Access({}), monkeypatch)
    request = StoreRequest(fleet="home", verb="restore").model_copy(update={"name": "\udcff"})
    with pytest.raises(ControlError, match="not text in UTF-8") as caught:
        await made._call("a", "store", request)
    assert "`sparkfleet restore`" in caught.value.do


async def test_a_verb_on_a_node_that_was_not_reached_has_its_error(monkeypatch):
    """The nodes without `environment` in the inventory: one that is off kept the verbs of all others from running."""
    off = Suspected("b: no answer within 10 s")

    async def install(*_):
        return NodeEnvironments({"a": "python"}, {"b": off})

    monkeypatch.setattr(environment, "install", install)
    made = NodePrograms(Access({}))
    assert await made.pythons() == {"a": "python"}
    assert await made._call("a", "store", StoreRequest(fleet="home", verb="restore")) == {}
    with pytest.raises(Suspected, match="b: no answer"):
        await made._call("b", "store", StoreRequest(fleet="home", verb="restore"))


VERSIONS = """2026-11-30 17:00:00 INFO scripts.py:1 -- Local node IP: 10.0.0.2
Traceback (most recent call last):
  File "x.py", line 1, in <module>
RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.13.5
This process on Ray node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.12.3
"""


class LoggedAccess(Access):
    """A node with a log of Ray; None: it does not answer."""

    def __init__(self, text):
        super().__init__()
        self._text = text

    async def root_of(self, node):
        if self._text is None:
            raise NodeError(f"{node}: no answer")
        return "/state"

    async def read(self, path, *, offset=0, limit=0):
        assert path == "/state/logs/ray.log"
        return self._text.encode()


async def test_the_last_error_of_rays_log_is_a_reason_with_its_place():
    found = await NodePrograms(LoggedAccess(VERSIONS)).ray_trouble("a")
    assert found == (
        "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0 Python: 3.13.5"
        " This process on Ray node 10.0.0.2 was started with: Ray: 2.60.0 Python: 3.12.3 (/state/logs/ray.log on a)"
    )
    found = await NodePrograms(LoggedAccess("\x1b[31mERROR\x1b[0m " + "x" * 900)).ray_trouble("a")
    assert found.startswith("\\x1b[31mERROR\\x1b[0m xxx")
    assert len(found) < 340


@pytest.mark.parametrize("text", ["", "INFO all is well\n", None])
async def test_without_an_error_in_rays_log_there_is_no_reason(text):
    assert await NodePrograms(LoggedAccess(text)).ray_trouble("a") == ""


@pytest.mark.parametrize(
    ("python", "version"),
    [("/h/.local/share/sparkfleet/env/0a-py3.11/bin/python", "3.11"), (None, ""), ("unreachable", "")],
)
async def test_environments_have_the_python_that_the_head_runs_from(monkeypatch, python, version):
    """A node with 3.12 that came back beside a fleet of 3.11 would have changed the choice, and could not join."""
    chosen = []

    async def install(channels, wheels, step, in_use):
        chosen.append(in_use)
        return NodeEnvironments({"a": "python"}, {})

    monkeypatch.setattr(environment, "install", install)
    access = Access({})
    access.python = python
    await NodePrograms(access).pythons()
    assert chosen == [version]
