"""`python -m sparkfleet.staging.agent.rsync_serve`, on a node: serves one directory to one other node by rsync.

It listens on the rail's address only, accepts connections from the peer's addresses only (a name may have several), and
passes each to an `rsync --daemon` that serves one read-only module to clients with the secret of this transfer. The daemons
end with this program, and this program ends when its reader is gone, for any reason, or its time is up.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sparkfleet.specs.fields import quote
from sparkfleet.staging.agent.protocol import LineReporter, program
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.parent_death import tethered
from sparkfleet.staging.storage_layout import place_of
from sparkfleet.values import Value

MODULE = "staged"
USER = "sparkfleet"
MAX_CONNECTIONS = 32
HEARTBEAT_S = 5.0
_UNFIT = frozenset('\n\r\0%#\\"')
"""Characters with a special meaning in rsyncd.conf, which a path cannot have."""


class Listen(Value):
    """One address to listen on, and the peer's address. `address` "": this node's address on the route to the peer."""

    address: str
    peer: str


class ServeRequest(Value):
    """Serve request: directory, peer and time limit."""

    kind: str
    name: str
    cache: str = ""
    listen: tuple[Listen, ...]
    secret: str = Field(repr=False, min_length=16, pattern=r"^[A-Za-z0-9_-]+$")
    limit_s: Annotated[float, Field(gt=0)]


class Serving(Value):
    """Addresses of this node: per `Listen`, an address and its port. SIGTERM to `pid` ends it cleanly."""

    ends: tuple[tuple[str, int], ...]
    pid: int


def work(request: ServeRequest, reporter: LineReporter) -> None:
    """Serve until this program's reader is gone, or its time is up."""
    root = place_of(request.kind, request.name, request.cache).root
    if not root.is_dir():
        raise StagingError(f"{root} no longer exists.", do="Run the command again: it plans a new copy.")
    rsync = shutil.which("rsync")
    if rsync is None:
        raise no_rsync()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _configured(root, request) as config:
        _serve(request, reporter, (rsync, "--daemon", "--no-detach", f"--config={config}"))


def no_rsync() -> StagingError:
    """The error for a node without rsync."""
    return StagingError(
        "rsync is not installed on this node.", do="Install it: `sudo apt-get install rsync`."
    )


def configuration(root: Path, peers: tuple[str, ...], secrets: Path) -> str:
    """rsyncd.conf for one read-only module. Raises StagingError if the path cannot be written in it."""
    if _UNFIT.intersection(str(root)) or str(root) != str(root).strip():
        raise StagingError(f"{quote(str(root))} cannot be served: rsyncd.conf cannot contain this path.")
    options = {
        "use chroot": "no",
        "reverse lookup": "no",
        "max connections": MAX_CONNECTIONS,
        "lock file": secrets.with_name("lock"),
        "log file": "/dev/null",
        # A daemon started by root would otherwise serve as nobody; other users need no uid and gid here.
        **({"uid": os.getuid(), "gid": os.getgid()} if os.getuid() == 0 else {}),
    }
    module = {
        "path": root,
        "read only": "yes",
        "list": "no",
        "auth users": USER,
        "secrets file": secrets,
        "strict modes": "yes",
        "hosts allow": " ".join(peers),
        "timeout": 120,
    }
    lines = (*_lines(options), f"[{MODULE}]", *_lines(module))
    return "\n".join(lines) + "\n"


def _lines(options: dict[str, object]) -> Iterator[str]:
    return (f"{name} = {value}" for name, value in options.items())


@contextmanager
def _configured(root: Path, request: ServeRequest) -> Iterator[Path]:
    """Configuration and secret, in files that only this user can read; removed at the end."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=_prefix(os.getpid())) as scratch:
        secrets, config = Path(scratch) / "secrets", Path(scratch) / "rsyncd.conf"
        for path, content in (
            (secrets, f"{USER}:{request.secret}\n"),
            (
                config,
                configuration(
                    root, tuple(ip for listen in request.listen for ip in _ips(listen.peer)), secrets
                ),
            ),
        ):
            path.touch(mode=0o600)
            path.write_text(content)
        yield config


def _prefix(pid: int) -> str:
    return f"sparkfleet-serve-{os.getuid()}-{pid}-"


def _sweep() -> None:
    """Remove files of servers that were killed. Their secrets are no longer valid."""
    mine = f"sparkfleet-serve-{os.getuid()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        pid = left.name.removeprefix(mine).split("-")[0]
        with suppress(FileNotFoundError):  # a server that has just ended removed it itself
            if pid.isdigit() and not Path(f"/proc/{pid}").exists() and left.lstat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)


def _serve(request: ServeRequest, reporter: LineReporter, daemon: tuple[str, ...]) -> None:
    sockets = {_bound(listen): _ips(listen.peer) for listen in request.listen}
    children: list[subprocess.Popen[bytes]] = []
    try:
        ends = tuple((bound.getsockname()[0], bound.getsockname()[1]) for bound in sockets)
        reporter.result(Serving(ends=ends, pid=os.getpid()))
        _accept(sockets, children, daemon, reporter, time.monotonic() + request.limit_s)
    finally:
        for child in children:
            child.kill()
        for bound in sockets:
            bound.close()


def _accept(
    sockets: dict[socket.socket, tuple[str, ...]],
    children: list[subprocess.Popen[bytes]],
    daemon: tuple[str, ...],
    reporter: LineReporter,
    until_s: float,
) -> None:
    by_number = {bound.fileno(): (bound, peers) for bound, peers in sockets.items()}
    poll = select.poll()
    poll.register(1, 0)  # errors only: the reader is gone
    for number in by_number:
        poll.register(number, select.POLLIN)
    while (left_s := until_s - time.monotonic()) > 0:
        ready = dict(poll.poll(min(left_s, HEARTBEAT_S) * 1000))
        if 1 in ready:
            return
        if not ready:
            # Sending detects a reader whose machine has vanished: TCP gives up, and this write fails.
            reporter.progress(0, 0, now=True)
        children[:] = [child for child in children if child.poll() is None]
        for number in ready:
            _hand_over(*by_number[number], children, daemon)


def _hand_over(
    bound: socket.socket,
    peers: tuple[str, ...],
    children: list[subprocess.Popen[bytes]],
    daemon: tuple[str, ...],
) -> None:
    try:
        connection, address = bound.accept()
    except OSError:
        return  # the client has closed it again
    with connection:
        if _ip(address[0]) not in peers or len(children) >= MAX_CONNECTIONS:
            return
        connection.setblocking(True)
        # rsync serves the socket on its stdin, as under inetd: the port is never free for another process.
        children.append(
            subprocess.Popen(
                daemon,
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.DEVNULL,
                preexec_fn=tethered(os.getpid()),  # noqa: PLW1509 (this process has one thread)
            )
        )


def _bound(listen: Listen) -> socket.socket:
    peer = _ip(listen.peer)
    address = _ip(listen.address) if listen.address else _towards(peer)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        bound = socket.create_server((address, 0), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise StagingError(
            f"cannot listen on {address}: {error.strerror or error}.",
            means="This rail of the inventory is down on this node, or has another address.",
            do="Check it: `sparkfleet doctor`. If the addresses have changed: `sparkfleet init`.",
        ) from error
    bound.setblocking(False)
    return bound


def _towards(peer: str) -> str:
    """This machine's address on the route to a peer. Nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def _ip(text: str) -> str:
    """Normalise an address; of a host name, the first address."""
    return _ips(text)[0]


def _ips(text: str) -> tuple[str, ...]:
    """Normalise an address; a host name is resolved on this node."""
    try:
        return (str(ip_address(text.partition("%")[0])),)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StagingError(
            f"{text}: this node cannot resolve the host name.",
            do="Use IP addresses or links in the inventory.",
        ) from error
    return tuple(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def main() -> int:
    """Entry point."""
    return program(ServeRequest, work)


if __name__ == "__main__":
    sys.exit(main())
