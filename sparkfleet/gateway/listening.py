"""Listening address of the gateway and limit of its bodies, and its entries on other nodes, which change while it serves.

The head's address file has them, so that a replica that Serve starts again listens at the present address; the routing
table has them for those that run.
"""

from __future__ import annotations

import contextlib
import json

from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.values import Value


class GatewayTls(Value):
    """The certificate that the gateway presents: files on the head, or a generated one for `names`."""

    cert: str = ""
    """PEM file with the certificate and its chain; "": a generated one."""
    key: str = ""
    names: tuple[str, ...] = ()
    """Names and addresses of the head for which one is generated, beside those that the head itself knows."""

    @property
    def is_generated(self) -> bool:
        """True if the fleet's own authority makes it."""
        return not self.cert


class GatewayListening(Value):
    """Address that the gateway listens at, and its longest request."""

    host: str
    port: int
    max_body_bytes: int
    origins: tuple[str, ...] = ()
    """Origins of other sites whose scripts may read answers."""
    tls: GatewayTls | None = None
    """None: it speaks HTTP without TLS."""


class GatewayEntry(Value):
    """An entry: the listener of a node beside the head that passes connections on to the gateway."""

    node: str
    host: str
    """Address that it listens at."""
    name: str
    """The node's name for clients if it listens on every address."""
    target: str
    """Address of the gateway towards the node."""


class EntryOrder(Value):
    """Addresses of an entry and of the gateway behind it."""

    host: str
    port: int
    target: str
    target_port: int
    tls: bool
    """False: it may answer in HTTP if the gateway is away."""


def stored_listening(paths: FleetPaths, default: GatewayListening) -> GatewayListening:
    """The address in the head's address file, or in its copy in the run directory; `default` if neither can be read."""
    for path in (paths.address, paths.run_address):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(path.read_bytes())
            return GatewayListening(
                host=stored["gateway_host"],
                port=stored["gateway_port"],
                max_body_bytes=stored.get("max_body_bytes") or default.max_body_bytes,
                origins=tuple(stored.get("origins", default.origins)),
                tls=_tls(stored.get("tls")),
            )
    return default


def _tls(stored: object) -> GatewayTls | None:
    # What cannot be read is an error, which leaves the default: never an endpoint without TLS.
    return None if stored is None else GatewayTls.model_validate_json(json.dumps(stored))
