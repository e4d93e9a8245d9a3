"""Reasons for which a node could not be reached. A time-out is a suspicion, not a verdict: the node may be busy.

NodeError
└── Unreachable
    ├── Suspected               no answer in time: busy, gone, or the network drops packets
    ├── Refused                 the connection was rejected: no SSH server, or it accepts no connections now
    ├── UnknownHost             the host name cannot be resolved
    ├── HostKeyChanged          the host key differs from the pinned one
    ├── AuthenticationFailed    the host key is right, and the login was denied
    └── ConnectionLost          the connection ended while it was in use
"""

from __future__ import annotations

from sparkfleet.errors import NodeError


class Unreachable(NodeError):
    """A node could not be reached."""


class Suspected(Unreachable):
    """No answer in time. The node may be busy: try again, or by another route, before counting it as down."""


class Refused(Unreachable):
    """The machine, or a router on the way, rejected the connection."""


class UnknownHost(Unreachable):
    """The host name cannot be resolved."""


class HostKeyChanged(Unreachable):
    """Host key that differs from the pinned one."""


class AuthenticationFailed(Unreachable):
    """The server accepted none of our keys."""


class ConnectionLost(Unreachable):
    """The connection ended while it was in use. Commands on the node may still run."""
