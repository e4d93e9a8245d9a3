"""A request as it arrives: its first line, and what its headers name. Nothing of it changes afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from time import perf_counter
from typing import Final

from sparkfleet.gateway.asgi import Fields, Headers, fields_of
from sparkfleet.gateway.errors.api_error import Dialect, dialect_of
from sparkfleet.gateway.policy.sessions import AGENT_HEADERS
from sparkfleet.gateway.policy.sessions import HEADERS as SESSION_HEADERS
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER, PRIORITY_HEADER
from sparkfleet.gateway.routing_table import KeyEntry, Priority

_CLIENT_IDS = (b"x-client-request-id", b"x-request-id")
_READ = frozenset(
    (*_CLIENT_IDS, *SESSION_HEADERS, *AGENT_HEADERS, EXPLAIN_HEADER, PRIORITY_HEADER, b"anthropic-version")
)
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class ClientRequest:
    """The head of a client's request, which has just arrived. `EngineRequest` is what an engine gets of it."""

    # Final fields in slots: a frozen dataclass or a named tuple costs every request 1 % more instructions.
    __slots__ = (
        "client_id",
        "dialect",
        "explains",
        "fields",
        "headers",
        "id",
        "is_batch",
        "method",
        "path",
        "session",
        "started",
    )

    def __init__(self, method: str, path: str, headers: Headers) -> None:
        client_id = explains = session = agent = ""
        is_batch, dialect = False, dialect_of(path)
        fields = fields_of(headers)
        if not _READ.isdisjoint(fields):
            client_id = _usable(fields, _CLIENT_IDS)
            session, agent = _usable(fields, SESSION_HEADERS), _usable(fields, AGENT_HEADERS)
            asked = fields.get(EXPLAIN_HEADER, b"")
            explains = asked.decode("ascii") if asked in (b"1", b"only") else ""
            is_batch = fields.get(PRIORITY_HEADER) == b"batch"
            if b"anthropic-version" in fields:
                dialect = "anthropic"
        self.method: Final = method
        self.path: Final = path
        self.headers: Final = headers
        self.fields: Final[Fields] = fields
        self.id: Final = f"req-{os.urandom(12).hex()}"
        """The gateway's name for it, unique."""
        self.started: Final = perf_counter()
        """Time of its arrival, s (`perf_counter`)."""
        self.client_id: Final = client_id
        """The client's own name for it, from `x-client-request-id` or `x-request-id`; "" without a usable one."""
        self.explains: Final = explains
        """`1` or `only` if the client asked for the reason for its group; "" otherwise."""
        self.dialect: Final[Dialect] = dialect
        """The client's API: Anthropic's clients name its version, also for paths that both APIs have."""
        self.session: Final = f"{session} {agent}" if agent else session
        """Name of the client's session, with that of the agent in it; "" without a usable one."""
        self.is_batch: Final = is_batch
        """True if it names the lower priority itself."""

    @property
    def is_head(self) -> bool:
        """True if the answer's body is not used."""
        return self.method == "HEAD"

    def priority(self, key: KeyEntry) -> Priority:
        """The priority: its key's, or a lower one that it names."""
        return "batch" if self.is_batch else key.limits.priority


def _usable(fields: Fields, names: Iterable[bytes]) -> str:
    """The first of these headers that is a usable name; "" if none is."""
    given = (fields.get(name, b"") for name in names)
    return next((value.decode("ascii") for value in given if _CLIENT_ID.fullmatch(value)), "")
