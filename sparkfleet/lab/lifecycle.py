"""Makes labs, deletes them, and removes the remains of killed ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sparkfleet.lab import faults, network, power
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.layout import Topology, make_layout
from sparkfleet.lab.machine import PYTHON, install_inside, make_node, resolve_shares
from sparkfleet.lab.refresh import refresh_sys
from sparkfleet.lab.replay.apply import show_in_nodes, write_answers
from sparkfleet.lab.replay.plan import ReplayPlan
from sparkfleet.lab.run import run
from sparkfleet.lab.state import (
    HOME,
    LabProcess,
    State,
    find,
    forget,
    load,
    locked,
    names,
    of_process,
    replace_file,
    save,
)

_PATH = re.compile(r"[A-Za-z0-9._+@=,/-]+")
"""Characters that ssh's configuration and an inventory accept without quotes."""
_NEEDED = ("/usr/sbin/sshd", "/usr/sbin/cron", PYTHON)


def check_host() -> None:
    """Checks that labs can be created here. Raises LabError."""
    if os.name != "posix" or sys.platform != "linux":
        raise LabError("A lab needs Linux namespaces: run it on Linux.")
    if os.geteuid() != 0:
        raise LabError(
            "A lab needs root.",
            means="Network namespaces with real sshd and cron cannot be made by other users.",
            do="Run it with sudo, or in a virtual machine of your own.",
        )
    missing = [path for path in _NEEDED if not Path(path).exists()]
    if missing:
        raise LabError(
            f"A lab needs {', '.join(missing)}.",
            do="On Debian or Ubuntu: apt-get install openssh-server cron python3 iproute2.",
        )


def up(
    name: str,
    nodes: int,
    topology: Topology | None = None,
    *,
    directory: str | None = None,
    shares: Iterable[str] = (),
    owner: int | None = None,
    replay: ReplayPlan | None = None,
) -> State:
    """Makes a lab and boots its nodes. Remains of an incomplete one of this name are removed first.

    Args:
        name: the lab's name, part of the names of its namespaces.
        nodes: number of Sparks.
        topology: their cables; by default one cable for two, a switch for more.
        directory: for its files; it must not exist. By default below /var/lib/sparkfleet-lab.
        shares: paths of the host that nodes see, read-only, at the same path.
        owner: a process id; the lab is deleted when that process ends, in any way.
        replay: the fleet of a bundle; it decides the number of nodes and their cables.

    Raises:
        LabError: not root, a lab of that name exists, or the host refused a request.
    """
    check_host()
    if replay:
        nodes, topology = len(replay.numbers), Topology.CAPTURED
    make_layout(name, nodes, topology, 0, replay.cabling if replay else ())
    paths = resolve_shares(shares)
    with locked(name):
        _refuse_second(name)
        _clear(name)
        state = _claim(_request(name, nodes, directory, paths, replay), topology)
        try:
            # Until the lab is complete the reaper watches this process, so that a killed one leaves nothing.
            state = save(replace(state, keeper=_keeper(name, of_process(os.getpid()), owner)))
            with _readable():
                state = save(replace(_make(state, replay), complete=True))
        except BaseException:
            _clear(name)
            raise
    return state


@contextmanager
def _readable() -> Iterator[None]:
    """Makes files of nodes readable by their users, whatever this process's umask is."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _refuse_second(name: str) -> None:
    known = find(name)
    if known and known.complete:
        raise LabError(
            f"The lab {name} is already up.",
            do=f"`scripts/lab down --name {name}` first, or give another --name.",
        )


def _request(
    name: str, nodes: int, directory: str | None, shares: tuple[str, ...], replay: ReplayPlan | None
) -> State:
    """The state of a lab that has no subnet yet."""
    place = str(Path(directory or HOME / name).absolute())
    request = State(name, place, 0, nodes, "", shares)
    if replay is None:
        return request
    return replace(request, cabling=replay.cabling, head=replay.head, replays=replay.replayed)


def _claim(request: State, topology: Topology | None) -> State:
    """Chooses a free subnet and registers the lab before any part of it is made."""
    directory = request.directory
    if not _PATH.fullmatch(directory):
        raise LabError(
            f"{directory!r} cannot be a lab's directory.",
            do="Use letters, digits and . _ + @ = , - in it.",
        )
    if Path(directory).exists():
        raise LabError(
            f"{directory} already exists.", do="Give a --dir that does not exist; `down` will delete it."
        )
    with locked(""):
        others = {state.subnet for state in map(find, names()) if state}
        taken = others | network.taken_subnets()
        free = [number for number in range(1, 255) if number not in taken]
        if not free:
            raise LabError(
                "All 254 subnets of 10.77.0.0/16 are in use.",
                do="`scripts/lab status` lists the labs; take some down.",
            )
        layout = make_layout(request.name, request.count, topology, free[0], request.cabling)
        return save(replace(request, subnet=free[0], topology=layout.topology.value))


def _make(state: State, replay: ReplayPlan | None) -> State:
    directory = Path(state.directory)
    directory.mkdir(mode=0o700, parents=True)
    run(
        (
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            f"lab-{state.name}",
            "-f",
            str(state.path("key")),
        )
    )
    install_inside(state)
    network.build(state.layout)
    for node in state.layout.nodes:
        make_node(state, node.name)
    shown = replay.nodes(state.layout) if replay else {}
    write_answers(state, shown)
    state = save(power.boot(state, [node.name for node in state.layout.nodes]))
    state = show_in_nodes(state, shown)
    replace_file(state.path("ssh_config"), ssh_config(state))
    return state


def down(name: str) -> bool:
    """Deletes a lab and its files; False if there was none. Calling it twice is harmless."""
    check_host()
    make_layout(name, 1, None, 0)
    with locked(name):
        return _clear(name)


def _clear(name: str) -> bool:
    """Removes every part of a lab: by its state, and by its name if the state is incomplete."""
    try:
        state = find(name)
    except LabError:
        state = None
    processes = power.inits_of(name)
    power.kill_all(processes)
    if state and state.keeper and state.keeper.pid != os.getpid():
        power.kill_all([state.keeper])
    removed = network.destroy(name)
    if state:
        forget(state)
    (Path("/run/sparkfleet-lab") / f"{name}.json").unlink(missing_ok=True)
    return bool(state or removed or processes)


def _keeper(name: str, maker: LabProcess, owner: int | None) -> LabProcess:
    """A process that deletes the lab if its maker ends before it is complete, or later its owner ends."""
    watched = (str(maker.pid), maker.started)
    owned = () if owner is None else (str(owner), of_process(owner).started)
    process = subprocess.Popen(
        (sys.executable, "-m", "sparkfleet.lab.reaper", name, *watched, *owned),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    process.returncode = 0  # it outlives this process, or `down` kills it
    return of_process(process.pid)


def ssh_config(state: State) -> str:
    """A configuration for ssh -F: every node by its name, the lab's key, host keys pinned on first use."""
    blocks = [
        f"Host {node.name}\n  HostName {node.address}\n  User nvidia\n  Port 22\n"
        f"  IdentityFile {state.path('key')}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {state.path('known_hosts')}\n  StrictHostKeyChecking accept-new\n"
        for node in state.layout.nodes
    ]
    return "\n".join(blocks)


def reboot(name: str, node: str) -> State:
    """Switches a node off and on again."""
    with locked(name):
        return _booted(save(power.shut(load(name), load(name).layout.node(node).name)), node)


def kill(name: str, node: str) -> State:
    """Switches a node off, as by a power cut."""
    with locked(name):
        state = save(power.shut(load(name), load(name).layout.node(node).name))
        refresh_sys(state)
        return state


def boot(name: str, node: str) -> State:
    """Switches a node on; one that is on stays unchanged."""
    with locked(name):
        state = load(name)
        known = state.inits.get(state.layout.node(node).name)
        return state if known and known.alive else _booted(state, node)


def _booted(state: State, node: str) -> State:
    booted = save(power.boot(state, [node]))
    faults.reapply(booted, node)
    refresh_sys(booted)
    return booted
