"""Reasons for which a node could not be reached. A time-out is a suspicion, never a verdict: busy nodes are slow, too.

NodeError
└── Unreachable
    ├── Suspected               it did not answer in time: busy, gone, or the network drops packets
    ├── Refused                 something answered, and said no: no SSH server there, or it wants no one now
    ├── UnknownHost             the name leads to no address
    ├── HostKeyChanged          another machine answered than the one that was pinned
    ├── AuthenticationFailed    the right machine answered, and does not let us in
    └── ConnectionLost          the connection ended while it was in use
"""

from __future__ import annotations

from sparkfleet.errors import NodeError


class Unreachable(NodeError):
    """A node could not be reached."""


class Suspected(Unreachable):
    """It did not answer in time. It may be busy: ask again, or by another way, before giving it up."""


class Refused(Unreachable):
    """Something answered in its place, or its network did, and refused."""


class UnknownHost(Unreachable):
    """Its name leads to no address."""


class HostKeyChanged(Unreachable):
    """Host key that differs from the pinned one."""


class AuthenticationFailed(Unreachable):
    """It answered, and accepted none of our keys."""


class ConnectionLost(Unreachable):
    """The connection ended while it was in use. What ran may still run."""
