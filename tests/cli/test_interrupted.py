"""Ctrl-C while a verb waits, with the real program: words instead of a traceback, and exit code 130."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sparkfleet.cli.interrupted import FOLLOWED, WORDS, interrupted_words
from sparkfleet.cli.verbs import VERBS

SPARKFLEET = str(Path(sys.executable).parent / "sparkfleet")
WAIT_S = 60.0


@pytest.fixture
def silent():
    """A port that accepts connections and never answers: `accepted()` returns when somebody has connected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


@pytest.fixture
def fleet(tmp_path, silent):
    """A directory and a state directory of a fleet whose controller does not answer. Returns its port."""
    port = silent.getsockname()[1]
    root = tmp_path / "state" / "home"
    root.mkdir(parents=True)
    address = {"ray": f"127.0.0.1:{port}", "api": f"http://127.0.0.1:{port}", "gateway_host": "127.0.0.1"}
    (root / "address.json").write_text(json.dumps({**address, "gateway_port": port}))
    (root / "api.token").write_text("0" * 64)
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    (tmp_path / "tiny.yaml").write_text("model: builtin:tiny\nname: tiny\n")
    return tmp_path


def interrupted(fleet, silent, argv, **more):
    """Exit code and standard error of a verb that got Ctrl-C while it waited."""
    env = {**os.environ, "SPARKFLEET_HOME": str(fleet / "state"), "SPARKFLEET_API_KEY": "sk-sf-x", **more}
    with subprocess.Popen(
        [SPARKFLEET, *argv],
        cwd=fleet,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            connection, _ = silent.accept()
            with connection:
                running.send_signal(signal.SIGINT)
                _, err = running.communicate(timeout=WAIT_S)
        finally:
            running.kill()
    return running.returncode, err


SHORT = [
    (["apply", "--yes", "tiny.yaml"], "goes on"),
    (["drain", "--yes", "a"], "goes on"),
    (["ask", "tiny", "hello"], "The engine ends this answer"),
    (["logs", "-f", "tiny"], ""),
    (["status", "--watch"], ""),
]
LONG = [
    (["up"], "go on"),
    (["delete", "--yes", "tiny"], "goes on"),
    (["restart", "--yes", "tiny"], "goes on"),
    (["scale", "--yes", "tiny", "2"], "goes on"),
    (["rollback", "--yes", "tiny"], "goes on"),
    (["describe", "tiny"], "Nothing was changed"),
    (["bench", "tiny"], "nothing was kept"),
    (["keys", "create", "x"], "`sparkfleet keys list` shows"),
    (["undrain", "a"], "goes on"),
    (["events", "--follow"], ""),
    (["ps"], "Nothing was changed"),
]


@pytest.mark.parametrize(
    ("argv", "says"),
    [*SHORT, *(pytest.param(*one, marks=pytest.mark.full) for one in LONG)],
    ids=[argv[0] for argv, _ in (*SHORT, *LONG)],
)
def test_ctrl_c_while_the_controller_does_not_answer(fleet, silent, argv, says):
    code, err = interrupted(fleet, silent, argv)
    assert (code, "Traceback" in err, "Error" in err) == (130, False, False), err
    assert says in err if says else err == "", err


def test_ctrl_c_while_weights_are_downloaded(fleet, silent):
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_CACHE": str(fleet / "hub")}
    hub["HF_HUB_OFFLINE"] = "0"
    (fleet / "state" / "home" / "address.json").unlink()
    code, err = interrupted(fleet, silent, ["models", "pull", "org/model"], **hub)
    assert (code, "Traceback" in err) == (130, False), err
    assert "the same command continues" in err


def test_ctrl_c_while_a_node_is_brought_down(fleet, silent):
    """`down` runs the interpreter of the node's role; this one connects, and stops nothing."""
    (fleet / "state" / "home" / "address.json").unlink()
    sleeper = fleet / "python"
    port = silent.getsockname()[1]
    sleeper.write_text(
        f"#!{sys.executable}\nimport socket, time\ns = socket.create_connection(('127.0.0.1', {port}))\ntime.sleep(60)\n"
    )
    sleeper.chmod(0o700)
    role = {"python": str(sleeper), "up": {"inventory": {"head": "a"}}}
    (fleet / "state" / "home" / "role.json").write_text(json.dumps(role))
    code, err = interrupted(fleet, silent, ["down"])
    assert (code, "Traceback" in err) == (130, False), err
    assert "`sparkfleet down` stops the rest" in err


@pytest.mark.parametrize("work", ["confirm('Delete tiny?')", "asyncio.run(asked())"])
def test_ctrl_c_at_a_question_changes_nothing(fleet, work):
    """On a terminal, before anything was confirmed. Within asyncio the first one was ignored, and the words after the second
    were those of a change that the fleet has accepted."""
    code = (
        "import asyncio\nfrom sparkfleet.cli import main, verbs\nfrom sparkfleet.cli.confirm import confirm\n"
    )
    code += "async def asked():\n    confirm('Delete tiny?')\n"
    code += f"main.app = lambda **_: {work}\nmain.main()"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    ends = time.monotonic() + WAIT_S
    while b"[y/N]" not in shown and time.monotonic() < ends:
        shown += os.read(terminal, 4096)
    with suppress(OSError):  # the terminal is gone with its last program
        while True:
            os.write(terminal, b"\x03")
            # Again after a while, as anybody would: Python misses one between its prompt and its wait for input.
            while select.select([terminal], [], [], 5)[0]:
                shown += os.read(terminal, 4096)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"Interrupted. Nothing was changed." in shown
    assert b"Traceback" not in shown


def test_every_verb_has_its_words():
    assert set(WORDS) | FOLLOWED == {*VERBS, "ps"}
    assert interrupted_words(["-V"]) == "Interrupted. The fleet continues with everything that was applied."


@pytest.mark.parametrize("argv", [["models", "list"], ["keys", "--json", "list"], ["fabric", "plan"]])
def test_a_verb_of_a_group_that_only_reads_has_changed_nothing(argv):
    """`models list` named files that had arrived."""
    assert interrupted_words(argv) == "Interrupted. Nothing was changed, and the fleet continues."
    assert interrupted_words([argv[0], "apply"]) != interrupted_words(argv)
