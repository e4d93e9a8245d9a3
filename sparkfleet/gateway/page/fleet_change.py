"""Requests of admin keys to the controller, which the gateway passes on, and its answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparkfleet.gateway.page.text_capture import MOST_MINUTES
from sparkfleet.specs.fields import NodeName, PublicName
from sparkfleet.values import Value

ChangeVerb = Literal["drain", "undrain", "stop", "start", "restart", "load", "unload"]
LOG_LINES = 200
MOST_LINES = 2000
LOG_BYTES = 256 << 10
"""Longest part of a log that an answer has."""


GroupName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}/g[0-9]{1,9}/[0-9]{1,5}$")]


class FleetChange(Value):
    """A change of the fleet."""

    verb: ChangeVerb
    node: NodeName | None = None
    """For `drain` and `undrain` of a node."""
    group: GroupName | None = None
    """For `drain` and `undrain` of a group."""
    deployment: PublicName | None = None
    """For the others."""
    generation: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    """Generation that was shown when the change was confirmed: with another one nothing is changed. None: not known."""
    who: str
    """For the event."""


class LogRequest(Value):
    """A request for the end of a rank's log."""

    deployment: PublicName
    replica: Annotated[int, Field(ge=0, le=10_000)] = 0
    rank: Annotated[int, Field(ge=0, le=10_000)] = 0
    lines: Annotated[int, Field(ge=1, le=MOST_LINES)] = LOG_LINES


class CaptureRequest(Value):
    """A request to keep the texts of requests for some time, or to delete them."""

    minutes: Annotated[int, Field(ge=0, le=MOST_MINUTES)]
    """0: delete them."""


class FleetAnswer(Value):
    """The controller's answer."""

    done: str = ""
    """Outcome in words; "" if it refused."""
    what: str = ""
    """The refusal: fact, meaning and remedy."""
    means: str = ""
    do: str = ""
    node: str = ""
    """Node of the log."""
    path: str = ""
    log: str = ""
    """Lines of the log, without control characters."""
