"""Exit codes of every verb in the situations of the table, and the document of an error with `--json`."""

import asyncio
import json
from collections.abc import Iterator

import pytest
import typer
from fake_channel import FakeChannel

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.verb_group import load_command
from sparkfleet.cli.verbs import VERBS
from sparkfleet.errors import UnreadableStateError, WrongFleetError
from sparkfleet.fleet import node_access
from sparkfleet.fleet import session as session_module
from sparkfleet.remote.unreachable import Refused

HOST_KEY = 'user: u, host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"'
HERE = "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
RAIL = "{{netdev: r{n}, address: 192.168.100.{n}/24}}"
AWAY = (
    f"fleet: home\nhead: a\nnodes:\n  a: {{address: 10.0.0.1, {HOST_KEY}}}\n  b: {{address: 10.0.0.2, {HOST_KEY}}}\n"
    f"links:\n  - nodes: [a, b]\n    rails: [[{RAIL.format(n=1)}, {RAIL.format(n=2)}]]\n"
)

WORDS = {
    "plan": ["tiny.yaml", "--offline"],
    "apply": ["tiny.yaml", "--offline", "--yes"],
    "scale": ["tiny", "2", "--yes"],
    "load": ["tiny"],
    "unload": ["tiny"],
    "restart": ["tiny", "--yes"],
    "history": ["tiny"],
    "rollback": ["tiny", "--yes"],
    "delete": ["tiny", "--yes"],
    "describe": ["tiny"],
    "logs": ["tiny"],
    "observe config": ["files"],
    "keys create": ["me"],
    "keys limit": ["me", "--concurrent", "2"],
    "keys rotate": ["me"],
    "keys revoke": ["me"],
    "connect": ["openai", "tiny"],
    "ask": ["tiny", "hello"],
    "bench": ["tiny"],
    "route": ["request.json"],
    "drain": ["a", "--yes"],
    "undrain": ["a"],
    "move-head": ["b", "--yes"],
    "models pull": ["builtin:tiny"],
    "models push": ["builtin:tiny"],
    "models prune": ["--yes"],
    "prune": ["--yes"],
    "bundle": ["--yes"],
    "uninstall": ["--yes"],
    "fabric apply": ["--yes"],
    "selftest": ["--yes"],
}
"""Arguments of the verbs that need some."""
WITHOUT_FLEET = {
    "explain",
    "accuracy",
    "convert",
    "suggest",
    "inspect",
    "help",
    "version",
    "knowledge status",
    "init",
    "demo",
    "top",
}
"""They need no fleet, no inventory, or a terminal."""
REPORTING = {"doctor": Exit.ERROR, "bundle": Exit.DONE}
"""A head that cannot be reached is a finding of these: they go on without it."""


def _paths() -> Iterator[tuple[str, bool]]:
    """Every verb, and whether it has `--json`."""
    for name in VERBS:
        command = load_command(name)
        for path, one in (
            [(f"{name} {sub}", sub_command) for sub, sub_command in command.commands.items()]
            if isinstance(command, typer.core.TyperGroup)
            else [(name, command)]
        ):
            yield path, any("--json" in option.opts for option in one.params)


HAS_JSON = {**dict(_paths()), "apply": False}
"""That of `apply` is for `--dry-run`."""
ON_A_FLEET = sorted(set(HAS_JSON) - WITHOUT_FLEET)


@pytest.fixture
def typed(sparkfleet, tmp_path, monkeypatch):
    """typed("keys list", inventory) → (exit code, stdout, stderr), with `--json` if the verb has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKFLEET_API_KEY", "sk-sf-none")
    (tmp_path / "tiny.yaml").write_text("name: tiny\nmodel: builtin:tiny\n")
    (tmp_path / "request.json").write_text('{"model": "tiny", "messages": []}')

    def typed(path, inventory, *more):
        if inventory is not None:
            (tmp_path / "inventory.yaml").write_text(inventory)
        json_option = ["--json"] if HAS_JSON[path] else []
        return sparkfleet(*path.split(), *WORDS.get(path, []), *json_option, *more)

    return typed


def error_of(path, out):
    """The error in a verb's document, if it has `--json`."""
    return json.loads(out)["error"]["what"] if HAS_JSON[path] else None


class Gone(FakeChannel):
    """A node that refuses connections, after a moment."""

    def __init__(self, node, after_s):
        super().__init__(node)
        self._after_s = after_s

    async def run(self, argv, **_):
        await asyncio.sleep(self._after_s)
        self.unreached = Refused(f"{self.node} cannot be reached: refused.", do="Switch it on.")
        raise self.unreached


@pytest.fixture
def gone(monkeypatch):
    """gone(a=0.05, b=0): nodes that cannot be reached, with the seconds until that is known. Others know no command."""

    def gone(**after_s):
        def open_channels(inventory):
            return {
                name: Gone(name, after_s[name]) if name in after_s else FakeChannel(name)
                for name in inventory.nodes
            }

        monkeypatch.setattr(node_access, "open_channels", open_channels)

    return gone


@pytest.mark.parametrize("path", sorted(HAS_JSON))
def test_a_wrong_option(typed, path):
    code, out, err = typed(path, HERE, "--zzz")
    words = f"{path}: no such option: --zzz."
    assert (code, words in err) == (Exit.ERROR, True)
    assert error_of(path, out) in (None, words)


@pytest.mark.parametrize(
    ("inventory", "words"),
    [(None, "inventory.yaml: no such file"), ("fleet: 7\n", "inventory.yaml:1: fleet")],
)
@pytest.mark.parametrize("path", ON_A_FLEET)
def test_an_inventory_that_is_missing_or_wrong(typed, path, inventory, words):
    code, out, err = typed(path, inventory)
    assert (code, words in err) == (Exit.ERROR, True)
    assert words in (error_of(path, out) or words)


LEAVING_OUT = ("models pull", "models push")
"""Verbs that work without a node."""


@pytest.mark.parametrize(
    "after_s", [{"a": 0.0}, {"a": 0.02, "b": 0.0}], ids=["head", "head, and another first"]
)
@pytest.mark.parametrize("path", ON_A_FLEET)
def test_a_head_that_cannot_be_reached(typed, gone, path, after_s):
    """`plan`, `apply`, `down`, `restore`, `models list` and `fabric plan` ended with 1."""
    gone(**after_s)
    code, out, err = typed(path, AWAY)
    if path in REPORTING:
        assert code == REPORTING[path]
        return
    assert code == Exit.UNREACHABLE
    if path == "status":
        assert json.loads(out)["condition"] == "unreachable"
        return
    lines = err.splitlines()
    without = (
        " Or leave it out for now: `--nodes` with the names of the others."
        if path in LEAVING_OUT and "b" in after_s
        else ""
    )
    assert lines[:3] == [
        "error: a, the head of fleet home, cannot be reached: a cannot be reached: refused.",
        "It is not known if the fleet is up. What runs goes on.",
        f"Switch it on.{without} If it is lost: `sparkfleet move-head b --lost`.",
    ]
    assert error_of(path, out) in (None, lines[0].removeprefix("error: "))


@pytest.mark.parametrize("path", ["models list", "fabric plan", "fabric firewall", "move-head"])
def test_another_node_that_cannot_be_reached(typed, gone, path):
    gone(b=0.0)
    code, _, err = typed(path, AWAY)
    assert (code, "the head of fleet" in err) == (Exit.ERROR, False)


NO_CONTROLLER_NEEDED = {
    *("backup", "restore", "doctor", "down", "models list", "models pull", "models push", "move-head"),
    *("fabric plan", "fabric apply", "fabric firewall", "fabric measure", "observe down"),
}
"""They do not look for a controller first."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreadableStateError("address.json is empty.", do="Put it back."), Exit.UNREADABLE),
        (WrongFleetError("Another fleet answers."), Exit.WRONG_FLEET),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize(
    "path", sorted(set(ON_A_FLEET) - NO_CONTROLLER_NEEDED - {"bundle", "keys list", "logs", "usage"})
)
def test_a_controller_in_trouble(typed, gone, monkeypatch, path, error, code):
    async def find_controller(*_):
        raise error

    monkeypatch.setattr(session_module, "find_controller", find_controller)
    gone()
    ended, out, err = typed(path, AWAY)
    assert ended == code
    if code == Exit.INTERRUPTED:
        assert err.startswith("Interrupted.")
    elif path != "status":
        assert err.startswith(f"error: {error}".splitlines()[0])
        assert error_of(path, out) in (None, error.what)


DOWN_IS_NO_ERROR = {
    *("plan", "apply", "doctor", "down", "up", "status", "keys list", "keys rotate-internal", "restore"),
    *("models list", "models pull", "models push", "bundle", "uninstall", "selftest", "observe down"),
    *(
        "fabric plan",
        "fabric apply",
        "fabric firewall",
        "fabric measure",
        "move-head",
        "backup",
        "logs",
        "usage",
    ),
}


@pytest.mark.parametrize("path", sorted(set(ON_A_FLEET) - DOWN_IS_NO_ERROR))
def test_a_fleet_that_is_down(typed, path):
    code, out, err = typed(path, HERE)
    assert (code, err.splitlines()[0].startswith("error: Fleet home is down")) == (Exit.ERROR, True)
    assert "`sparkfleet up`" in err
    assert (error_of(path, out) or "Fleet home is down").startswith("Fleet home is down")
