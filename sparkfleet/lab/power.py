"""Switches nodes on and off, and runs commands in them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkfleet.lab import network
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.machine import PATH, PYTHON, boot_spec
from sparkfleet.lab.state import UID, USER, LabProcess, State, of_process, replace_file, with_init

MARKER = "sparkfleet-lab"
_BOOT_S = 120.0
_START = (
    "import sys; sys.path.insert(0, sys.argv[5]); from sparkfleet.lab.inside.init import main; main(sys.argv)"
)
_SESSION = {"PATH": PATH, "HOME": f"/home/{USER}", "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash",
            "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": f"/run/user/{UID}"}  # fmt: skip


@dataclass
class _Booting:
    """A node that boots."""

    node: str
    process: subprocess.Popen[bytes]
    ready: int


def boot(state: State, nodes: Iterable[str]) -> State:
    """Switches nodes on in parallel, and waits until each has its sshd. Raises LabError if one does not boot."""
    started = [_start(state, node) for node in nodes]
    try:
        for booting in started:
            state = with_init(state, booting.node, _wait(state, booting))
    finally:
        for booting in started:
            os.close(booting.ready)
    for booting in started:
        network.configure(state.layout, booting.node)
    network.set_carriers(state.layout, state.powered, state.pulled)
    return state


def _start(state: State, node: str) -> _Booting:
    spec = state.node_path(node, "boot.json")
    replace_file(spec, json.dumps(boot_spec(state, node)))
    ready, write_end = os.pipe()
    init = (
        PYTHON,
        "-I",
        "-S",
        "-c",
        _START,
        MARKER,
        node,
        str(spec),
        str(write_end),
        str(state.path("lib")),
        state.name,
    )
    separate = (
        "unshare",
        "--mount",
        "--uts",
        "--ipc",
        "--pid",
        "--fork",
        "--mount-proc",
        "--propagation",
        "private",
    )
    with open(state.node_path(node, "log", "init.log"), "ab") as log:
        process = subprocess.Popen(
            ("nsenter", f"--net=/run/netns/{state.layout.namespace(node)}", *separate, *init),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env={"PATH": PATH, "LANG": "C.UTF-8"},
            pass_fds=(write_end,), start_new_session=True,
        )  # fmt: skip
    os.close(write_end)
    return _Booting(node, process, ready)


def _wait(state: State, booting: _Booting) -> LabProcess:
    received, end = b"", time.monotonic() + _BOOT_S
    while received != b"ready":
        if not select.select([booting.ready], [], [], max(0.0, end - time.monotonic()))[0]:
            raise _did_not_boot(state, booting.node, f"no answer within {_BOOT_S:.0f} s")
        more = os.read(booting.ready, 65536)
        if not more:
            raise _did_not_boot(state, booting.node, received.decode(errors="replace").strip())
        received += more
    children = Path(f"/proc/{booting.process.pid}/task/{booting.process.pid}/children").read_text().split()
    booting.process.returncode = 0  # init or the reaper waits for it if it outlives this process
    return of_process(int(children[0]))


def _did_not_boot(state: State, node: str, error: str) -> LabError:
    log = state.node_path(node, "log", "init.log").read_text(errors="replace")
    reason = (error or log).strip().splitlines()[-1:] or ["no reason was given"]
    return LabError(f"{node} did not boot: {reason[0]}", do="The lab needs root with CAP_SYS_ADMIN on Linux.")


def shut(state: State, node: str) -> State:
    """Takes a node's links down, so that not even a FIN is sent, and kills its processes. One that is off stays off."""
    layout = state.layout
    network.set_carriers(layout, [name for name in state.powered if name != node], state.pulled)
    kill_all(inits_of(state.name, node))
    return with_init(state, node, None)


def kill_all(processes: Iterable[LabProcess]) -> None:
    """Kills processes and waits until they have ended. The first process of a pid namespace ends all others with it."""
    watched = []
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        if process.alive:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            watched.append((process.pid, descriptor))
        else:
            os.close(descriptor)
    for pid, descriptor in watched:
        # Readable when the process has ended; for an init, when the whole namespace is empty.
        select.select([descriptor], [], [], 10.0)
        os.close(descriptor)
        _reap(pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process's child


def inits_of(name: str, node: str | None = None) -> list[LabProcess]:
    """First processes of a lab's nodes (or of one) and their parents, found by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_init(entry, name, node):
            try:
                found.append(of_process(int(entry.name)))
            except LabError:
                continue
    return found


def _is_init(entry: Path, name: str, node: str | None) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        MARKER.encode() in words
        and words[-2:] == [name.encode(), b""]
        and (not node or node.encode() in words)
    )


def command(state: State, node: str, argv: Sequence[str], *, root: bool = False) -> list[str]:
    """The host's command that runs `argv` in a node, as its user or as root. Raises LabError if it is off."""
    process = state.inits.get(state.layout.node(node).name)
    if process is None or not process.alive:
        raise LabError(
            f"{node} is powered off.", do=f"`scripts/lab boot {node} --name {state.name}` switches it on."
        )
    enter = ["nsenter", f"--target={process.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
    session = dict(_SESSION) if not root else _SESSION | {"HOME": "/root", "USER": "root", "LOGNAME": "root"}
    as_user = (
        [] if root else ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups", "--inh-caps=-all"]
    )
    variables = [f"{name}={value}" for name, value in session.items()]
    return [*enter, *as_user, "env", "-i", "-C", session["HOME"], *variables, *argv]
