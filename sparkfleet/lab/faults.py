"""Faults: changes to a lab's cables, and to the values that its nodes report."""

from __future__ import annotations

import json
import math
import os
import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sparkfleet.lab import network, power
from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside import node_settings
from sparkfleet.lab.inside.node_settings import KNOBS, REAL, TOOLS, NodeSettings, split
from sparkfleet.lab.layout import RAIL_MTU, SimulatedRail, rail_address
from sparkfleet.lab.machine import write_groups, write_host_key, write_identity
from sparkfleet.lab.meminfo import meminfo
from sparkfleet.lab.refresh import refresh_sys
from sparkfleet.lab.run import run
from sparkfleet.lab.state import UID, USER, State, load, locked, replace_file, save

_CACHE = f"/home/{USER}/.cache/huggingface"
_LIVE = ("memlock", "disk", "container", "meminfo", "holder_mib")
"""Knobs that change the running node; they take effect at its next boot if it is off."""
_RELOAD_S = 20.0
_HIDDEN = "/run/lab/hidden"
_HOLDER = "import sys, time; sys.stdin.close(); time.sleep(10**8)"


def cut(name: str, link: str, rail: int | None = None) -> None:
    """Pulls a rail, or both rails of a link: the netdevs at both ends lose their carrier. Raises LabError."""
    with locked(name):
        state = load(name)
        keys = {network.rail_key(found) for found in _rails(state, link, rail)}
        refresh_sys(_plug(state, {*state.pulled, *keys}))


def mend(name: str, link: str, rail: int | None = None) -> None:
    """Restores a rail, or both: plugged, at full speed, MTU 9000, with its own addresses."""
    with locked(name):
        state = load(name)
        rails = _rails(state, link, rail)
        state = _plug(state, {*state.pulled} - {network.rail_key(found) for found in rails})
        for found in rails:
            network.pace(state.layout, found, None, None)
            network.set_mtu(state.layout, found.ends, RAIL_MTU)
            for end in found.ends:
                network.set_address(state.layout, end, end.address)
            state = _report_slow(state, found, 0.0, 0.0)
        refresh_sys(state)


def _plug(state: State, pulled: set[str]) -> State:
    network.set_carriers(state.layout, state.powered, pulled)
    return save(replace(state, pulled=tuple(sorted(pulled))))


def slow(
    name: str, link: str, rail: int | None = None, *, gbit: float | None = None, delay_ms: float | None = None
) -> None:
    """Limits a rail, or both, to `gbit` Gb/s and adds `delay_ms` in each direction.

    Raises:
        LabError: neither was given, or the kernel has no netem, which a delay needs.
    """
    given = [one for one in (gbit, delay_ms) if one is not None]
    if not given or not all(map(math.isfinite, given)) or gbit == 0 or min(given) < 0:
        raise LabError("`slow` needs a rate or a delay.", do="Give --gbit above 0 or --delay from 0 (ms).")
    with locked(name):
        state = load(name)
        for found in _rails(state, link, rail):
            _pace(state, found, gbit, delay_ms)
            state = _report_slow(state, found, gbit or 0.0, delay_ms or 0.0)
        refresh_sys(state)


def _pace(state: State, rail: SimulatedRail, gbit: float | None, delay_ms: float | None) -> None:
    try:
        network.pace(state.layout, rail, gbit, delay_ms)
    except LabError as error:
        if delay_ms is None or "netem" not in error.what:
            raise
        raise LabError(
            "This kernel cannot delay packets: it has no netem.",
            do="Use --gbit alone, or `set NODE rdma_us=…` for the latency of ib_write_lat; or: modprobe sch_netem",
        ) from error


def _report_slow(state: State, rail: SimulatedRail, gbit: float, delay_ms: float) -> State:
    for end in rail.ends:
        reported = {f"slow_gbit.{end.netdev}": gbit, f"slow_ms.{end.netdev}": delay_ms}
        others = {
            key: value for key, value in state.settings.get(end.node, {}).items() if key not in reported
        }
        state = _write(
            state, end.node, others | {key: f"{value:g}" for key, value in reported.items() if value}
        )
    return save(state)


def mtu(name: str, link: str, rail: int | None, size: int, node: str | None = None) -> None:
    """Sets the MTU of a rail's netdevs, at both ends or at one node's."""
    if not 576 <= size <= RAIL_MTU:
        raise LabError(f"An MTU of {size} cannot be set.", do="Give 576 to 9000.")
    with locked(name):
        layout = load(name).layout
        for found in _rails(load(name), link, rail):
            ends = [end for end in found.ends if node in (None, end.node)]
            if not ends:
                named = " and ".join(end.node for end in found.ends)
                raise LabError(f"{node} is at no end of {link}.", do=f"Its ends are at {named}.")
            network.set_mtu(layout, ends, size)
        refresh_sys(load(name))


def subnet(name: str, link: str, rail: int, wanted: str) -> None:
    """Moves a rail into another subnet, such as that of the other rail: its addresses end in .111, .112, … there."""
    with locked(name):
        layout = load(name).layout
        for found in _rails(load(name), link, rail):
            for end in found.ends:
                try:
                    address = rail_address(wanted, layout.node(end.node).number, half=1)
                except (ValueError, IndexError):
                    raise LabError(
                        f"{wanted!r} is not a usable subnet.", do="Give one like 192.168.100.0/24."
                    ) from None
                network.set_address(layout, end, address)
        refresh_sys(load(name))


def _rails(state: State, link: str, rail: int | None) -> tuple[SimulatedRail, ...]:
    return network.cable_rails(state.layout.cable(link), rail)


def settings_of(state: State, node: str) -> NodeSettings:
    """Changed settings of a node."""
    return NodeSettings(state.settings.get(state.layout.node(node).name, {}))


def set_knobs(name: str, node: str, changes: Mapping[str, str]) -> None:
    """Sets knobs of a node, with effect at once. Raises LabError for an unknown one or a wrong value."""
    for key, value in changes.items():
        wrong = node_settings.problem(key, value)
        if wrong:
            raise LabError(f"{key}={value}: {wrong}.", do="`scripts/lab knobs` lists them.")
    with locked(name):
        state = load(name)
        state.layout.node(node)
        _check_others(state, changes)
        refresh_sys(turn(state, node, changes), [node])


def turn(state: State, node: str, changes: Mapping[str, str]) -> State:
    """Sets checked knobs of a node; the caller holds the lab's lock."""
    state = save(_write(state, node, state.settings.get(node, {}) | dict(changes)))
    for key in dict.fromkeys(split(key)[0] for key in changes):
        if node in state.powered or key not in _LIVE:
            _EFFECTS.get(key, _nothing)(state, node)
    return state


def heal(name: str, node: str) -> None:
    """Undoes every knob of a node. Raises LabError."""
    given = load(name).settings.get(load(name).layout.node(node).name, {})
    restored = {key: KNOBS[split(key)[0]].healthy for key in given if not key.startswith("slow_")}
    set_knobs(name, node, restored)
    with locked(name):
        state = load(name)
        kept = {key: value for key, value in given.items() if key.startswith("slow_")}
        refresh_sys(save(_write(state, node, kept)), [node])


def _check_others(state: State, changes: Mapping[str, str]) -> None:
    """Checks that knobs with another node's name have an existing one."""
    for key in ("machine_id", "host_key"):
        value = changes.get(key, "own")
        if value not in ("own", "new") and not (key == "machine_id" and len(value) == 32):
            state.layout.node(value)


def _write(state: State, node: str, given: Mapping[str, str]) -> State:
    replace_file(state.node_path(node, "state/knobs.json"), json.dumps(dict(given)))
    return replace(state, settings={**state.settings, node: dict(given)})


def reapply(state: State, node: str) -> None:
    """Applies the knobs of the running node again after a boot."""
    given = state.settings.get(node, {})
    for key in _LIVE:
        if key in given and key != "holder_mib":
            _EFFECTS[key](state, node)
    if given.get("holder_mib", "0") != "0":
        # A leftover process does not survive a reboot.
        save(_write(state, node, {**given, "holder_mib": "0"}))


def _nothing(state: State, node: str) -> None:
    """No action: the device commands read most knobs."""


def _identity(state: State, node: str) -> None:
    write_identity(state, node, settings_of(state, node))


def _host_key(state: State, node: str) -> None:
    write_host_key(state, node, settings_of(state, node).text("host_key"))
    # sshd reads its keys again on SIGHUP; root sends it inside the node, which has its own /run.
    if node in state.powered:
        _inside(state, node, _RELOAD_SSHD)
        _await_host_key(state, node)


def _await_host_key(state: State, node: str) -> None:
    """Waits until sshd serves its new key: on SIGHUP it restarts itself, and accepts nothing meanwhile."""
    key = state.node_path(node, "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
    ask = ("ssh-keyscan", "-T", "2", "-t", "ed25519", "127.0.0.1")
    end = time.monotonic() + _RELOAD_S
    while True:
        with suppress(LabError):
            if key in _inside(state, node, ask):
                return
        if time.monotonic() > end:
            raise LabError(
                f"sshd of {node} does not serve its new host key {_RELOAD_S:.0f} s after its reload."
            )
        time.sleep(0.05)


_RELOAD_SSHD = ("/usr/bin/python3", "-IS", "-c", "import os; os.kill(int(open('/run/sshd.pid').read()), 1)")


def _groups(state: State, node: str) -> None:
    write_groups(state.node_path(node, "etc"), settings_of(state, node).text("groups"))


def _sudo(state: State, node: str) -> None:
    rule = state.node_path(node, "etc/sudoers.d/lab")
    rule.unlink(missing_ok=True)
    if settings_of(state, node).text("sudo") == "no":
        return
    if not Path("/usr/bin/sudo").exists():
        raise LabError("There is no sudo on this machine.", do="Install it: nodes use the host's programs.")
    rule.write_text(f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n")
    rule.chmod(0o440)


def _memlock(state: State, node: str) -> None:
    """Sets the limit of sshd, which sessions inherit. Any user can lower a soft limit, and raise it to the hard one."""
    wanted = settings_of(state, node).text("memlock")
    listener = _inside(state, node, ("cat", "/run/sshd.pid")).strip()
    for pid in _host_pids(state, node, listener):
        _, most = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)
        limit = most if wanted == "unlimited" else int(wanted) * 1024
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (limit, most))


def _host_pids(state: State, node: str, inside: str) -> list[int]:
    """The host's number of the process that has the number `inside` in a node."""
    init = state.inits[node].pid
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    return [int(pid) for pid in children if _inner_number(pid) == inside]


def _inner_number(pid: str) -> str:
    """The number of a process in its node; "" for one that has ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "")


def _container(state: State, node: str) -> None:
    """Gives the node podman or hides it, by a layer over its /usr/bin in which podman is marked as deleted."""
    _unmount(state, node, "/usr/bin")
    layers = [TOOLS, REAL]
    if settings_of(state, node).text("container") == "none":
        _inside(state, node, ("mkdir", "-p", _HIDDEN))
        for program in ("podman", "docker"):
            if _inside(state, node, ("find", _HIDDEN, "-name", program)) == "":
                # overlayfs treats a character device 0/0 as a deleted file.
                _inside(state, node, (f"{REAL}/mknod", f"{_HIDDEN}/{program}", "c", "0", "0"))
        layers.insert(0, _HIDDEN)
    options = f"ro,lowerdir={':'.join(layers)}"
    _inside(state, node, ("mount", "-t", "overlay", "-o", options, "overlay", "/usr/bin"))


def _disk(state: State, node: str) -> None:
    """Mounts a file system of the given size at the model cache, which can really be full."""
    _unmount(state, node, _CACHE)
    size = settings_of(state, node).text("disk")
    if size == "real":
        return
    _inside(state, node, ("mkdir", "-p", _CACHE))
    _inside(state, node, ("chown", f"{UID}:{UID}", f"/home/{USER}/.cache", _CACHE))
    options = f"size={_bytes(size)},uid={UID},gid={UID},mode=0755"
    _inside(state, node, ("mount", "-t", "tmpfs", "-o", options, "tmpfs", _CACHE))


def _bytes(size: str) -> int:
    return int(float(size[:-1]) * 1024 ** " KMGT".index(size[-1]))


def _meminfo(state: State, node: str) -> None:
    """Mounts the new file over the old one, so that no reader gets the host's file or half of one."""
    settings = settings_of(state, node)
    if settings.text("meminfo") == "real":
        while _unmount(state, node, "/proc/meminfo"):
            pass
        return
    file = f"/run/lab/meminfo-{secrets.token_hex(4)}"
    text = meminfo(settings.text("meminfo"), int(settings.text("holder_mib")))
    run((*power.command(state, node, ("tee", file), root=True),), stdin=text)
    _inside(state, node, ("mount", "--bind", file, "/proc/meminfo"))


def _unmount(state: State, node: str, place: str) -> bool:
    """Unmounts the last of several mounts at a path; False if there was none."""
    mounted = _inside(state, node, ("cat", "/proc/self/mountinfo")).splitlines()
    is_mounted = any(line.split()[4] == place for line in mounted)
    if is_mounted:
        _inside(state, node, ("umount", "--lazy", place))
    return is_mounted


def _holder(state: State, node: str) -> None:
    """Starts a user's process that nvidia-smi lists. It uses no memory of the host: the number is only reported."""
    pidfile = state.node_path(node, "state/holder.pid")
    if pidfile.exists():
        for pid in _host_pids_anywhere(state, node, pidfile.read_text().strip()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pidfile.unlink()
    if settings_of(state, node).text("holder_mib") != "0":
        argv = ("setsid", "--fork", "/usr/bin/python3", "-IS", "-c", _HOLDER, "VLLM::EngineCore")
        nothing = subprocess.DEVNULL  # it lives on: a pipe of the caller's would never end
        subprocess.run(
            power.command(state, node, argv), stdin=nothing, stdout=nothing, stderr=nothing, check=True
        )
        found = _inside(state, node, ("pgrep", "--newest", "--full", "VLLM::EngineCore"))
        replace_file(pidfile, found)
    if settings_of(state, node).text("meminfo") != "real":
        _meminfo(state, node)


def _host_pids_anywhere(state: State, node: str, inside: str) -> list[int]:
    init = state.inits[node].pid
    namespace = os.stat(f"/proc/{init}/ns/pid").st_ino
    found = []
    for entry in Path("/proc").iterdir():
        try:
            same = entry.name.isdigit() and os.stat(entry / "ns/pid").st_ino == namespace
            if same and _inner_number(entry.name) == inside:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _inside(state: State, node: str, argv: tuple[str, ...]) -> str:
    return run(power.command(state, node, argv, root=True))


_EFFECTS: dict[str, Callable[[State, str], None]] = {
    "machine": _identity,
    "dgx_os": _identity,
    "machine_id": _identity,
    "host_key": _host_key,
    "groups": _groups,
    "sudo": _sudo,
    "memlock": _memlock,
    "container": _container,
    "disk": _disk,
    "meminfo": _meminfo,
    "holder_mib": _holder,
}
