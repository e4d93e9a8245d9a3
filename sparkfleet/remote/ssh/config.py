"""Route to a node: the inventory, completed by `~/.ssh/config`. The inventory takes precedence."""

from __future__ import annotations

import getpass
import glob
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.hostkeys import HostKeyEntry

from sparkfleet.errors import NodeError
from sparkfleet.specs.inventory import Jump, Node

_MOST_HOPS = 8
_MOST_FILES = 100


@dataclass(frozen=True)
class Hop:
    """One SSH server on the way; the last is the node.

    Attributes:
        name: its name in messages.
        pins: fingerprints of the accepted host keys.
        identities: private keys to log in with, in order.
        only_identities: True if the agent's other keys are not offered.
    """

    name: str
    host: str
    port: int
    user: str
    pins: frozenset[str]
    identities: tuple[Path, ...] = ()
    only_identities: bool = False


class SshConfig:
    """Reads `~/.ssh/config` and `~/.ssh/known_hosts`.

    Args:
        home: the directory that has `.ssh`; left out, the user's. `~` in it is always the user's.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._ssh = (home or Path.home()) / ".ssh"
        self._config = _parse(self._ssh / "config")

    def route(self, name: str, node: Node) -> tuple[Hop, ...]:
        """The SSH servers on the way to a node, which is the last of them.

        Raises:
            NodeError: the configuration has an option that is not supported, or is invalid.
        """
        assert node.user is not None
        assert node.host_key is not None
        options = self._lookup(node.address)
        port = node.port if "port" in node.model_fields_set else _port(options, node.port)
        last = self._hop(
            f"{name} ({node.address})",
            options,
            port=port,
            user=node.user,
            pins={node.host_key},
            identity=node.identity_file,
        )
        return (*(self._jump(node.jump) if node.jump else self._proxies(options, name)), last)

    def _jump(self, jump: Jump) -> tuple[Hop, ...]:
        options = self._lookup(jump.address)
        port = jump.port if "port" in jump.model_fields_set else _port(options, jump.port)
        name = f"jump host {jump.address}"
        hop = self._hop(
            name, options, port=port, user=jump.user, pins={jump.host_key}, identity=jump.identity_file
        )
        return (*self._proxies(options, name), hop)

    def _proxies(self, options: HostOptions, name: str, depth: int = 0) -> tuple[Hop, ...]:
        """The hops of `ProxyJump`, whose host keys the user has in `known_hosts`."""
        if depth == _MOST_HOPS:
            raise NodeError(f"{name}: `ProxyJump` in {self._ssh / 'config'} leads back to itself")
        if options.get("proxycommand", "none") != "none":
            raise NodeError(
                f"{name}: {self._ssh / 'config'} has a `ProxyCommand`, which sparkfleet does not support",
                do="Use `ProxyJump` instead, or `jump` in the inventory.",
            )
        wanted = options.get("proxyjump", "none")
        if wanted == "none":
            return ()
        hops: tuple[Hop, ...] = ()
        for index, part in enumerate(wanted.split(",")):
            user, host, port = _destination(part.strip())
            there = self._lookup(host)
            if index == 0:
                hops = self._proxies(there, f"jump host {host}", depth + 1)
            port = port or _port(there, 22)
            user = user or there.get("user") or getpass.getuser()
            pins = self._known(there, host, port)
            hops += (self._hop(f"jump host {host}", there, port=port, user=user, pins=pins),)
        return hops

    def _hop(
        self,
        name: str,
        options: HostOptions,
        *,
        port: int,
        user: str,
        pins: Iterable[str],
        identity: str | None = None,
    ) -> Hop:
        given = identity is not None
        files = [identity] if identity is not None else options.get("identityfile", [])
        return Hop(
            name=name,
            host=options["hostname"],
            port=port,
            user=user,
            pins=frozenset(pins),
            identities=tuple(Path(file).expanduser() for file in files) or self._default_identities(),
            only_identities=given or options.get("identitiesonly", "no") == "yes",
        )

    def _default_identities(self) -> tuple[Path, ...]:
        return tuple(self._ssh / f"id_{kind}" for kind in ("ed25519", "ecdsa", "rsa"))

    def _lookup(self, host: str) -> HostOptions:
        try:
            return dict(self._config.lookup(host))
        except Exception as error:  # paramiko raises many kinds for `Match` and for tokens
            raise NodeError(f"{self._ssh / 'config'}: {error}") from error

    def _known(self, options: HostOptions, host: str, port: int) -> set[str]:
        """The fingerprints of a host in `known_hosts`, under its own name and under its alias."""
        file = self._ssh / "known_hosts"
        known = known_hosts(file)
        found: set[str] = set()
        for name in (options["hostname"], host):
            entries = known.lookup(name if port == 22 else f"[{name}]:{port}")
            found |= {key.fingerprint for key in entries.values()} if entries else set()
        if not found:
            raise NodeError(
                f"The host key of the jump host {host} is not known",
                means=f"`ProxyJump` in {self._ssh / 'config'} uses it, and {file} has no key for it.",
                do=f"Run `ssh {host}` once and compare the fingerprint, or set `jump` in the inventory.",
            )
        return found


def known_hosts(file: Path) -> paramiko.HostKeys:
    """The keys of a `known_hosts`, none if there is no such file. A line without a usable key is skipped, as `ssh` does."""
    known = paramiko.HostKeys()
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        try:
            entry = HostKeyEntry.from_line(line)
        except Exception:  # paramiko raises many kinds  # noqa: S112
            continue
        if entry is not None:
            for name in entry.hostnames:
                known.add(name, entry.key.get_name(), entry.key)
    return known


HostOptions = dict[str, Any]
"""Options of one host in the configuration: values are strings, but for lists of files."""


def _parse(file: Path) -> paramiko.SSHConfig:
    try:
        return paramiko.SSHConfig.from_text(_with_includes(file, []))
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise NodeError(
            f"{file} cannot be used: {error}", do="Correct it; `ssh -G HOST` checks it."
        ) from error


def _with_includes(file: Path, read: list[Path]) -> str:
    """Text of the file with its `Include`s resolved, which paramiko does not do. Raises ValueError, OSError."""
    if not file.is_file():
        return ""
    read.append(file)
    if len(read) > _MOST_FILES:
        raise ValueError(f"it includes more than {_MOST_FILES} files, or itself")
    lines: list[str] = []
    for line in file.read_text(errors="replace").splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() != "include":
            lines.append(line)
            continue
        for pattern in shlex.split(rest):
            lines += (_with_includes(path, read) for path in _matching(pattern, file.parent))
    return "\n".join(lines)


def _matching(pattern: str, beside: Path) -> list[Path]:
    return sorted(Path(found) for found in glob.glob(str(beside / Path(pattern).expanduser())))


def _port(options: HostOptions, otherwise: int) -> int:
    """Port of a host. Raises NodeError if it is not a port number."""
    port = str(options.get("port", otherwise))
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise NodeError(f"{options['hostname']}: `Port {port[:40]}` in ~/.ssh/config is not a port number")
    return int(port)


def _destination(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]`."""
    user, _, place = text.removeprefix("ssh://").rpartition("@")
    found = re.fullmatch(
        r"\[(?P<v6>[^]]+)](?::(?P<p6>\d{1,5}))?|(?P<name>[^:]+)(?::(?P<port>\d{1,5}))?|(?P<bare>.*:.*)", place
    )
    if found is None:
        raise NodeError(f"`ProxyJump {text[:80]}` in ~/.ssh/config is not a host")
    port = found["p6"] or found["port"]
    return user or None, found["v6"] or found["name"] or found["bare"], int(port) if port else None
