"""State of one request and its answer, and the metrics and log line at its end."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from sparkfleet.gateway.admission.key_limiter import AdmittedRequest
from sparkfleet.gateway.admission.slot import Slot
from sparkfleet.gateway.asgi import DirectWriter, Headers
from sparkfleet.gateway.engine.attempts import Attempts
from sparkfleet.gateway.engine.replay import ContinuableRequest
from sparkfleet.gateway.engine.upstream import EngineRequest
from sparkfleet.gateway.engine.usage import Usage, UsageMeter
from sparkfleet.gateway.errors.api_error import Dialect, dialect_of
from sparkfleet.gateway.policy.sessions import AGENT_HEADERS
from sparkfleet.gateway.policy.sessions import HEADERS as SESSION_HEADERS
from sparkfleet.gateway.request_parser import EXPLAIN_HEADER, PRIORITY_HEADER
from sparkfleet.gateway.routing_table import KeyEntry, Priority
from sparkfleet.telemetry.metrics import GatewayMetrics, path_label

CLIENT_GONE = 499
"""Status that is counted if the client was gone before the answer (nginx's convention)."""
CUT_SHORT = 502
"""Status that is counted for an answer that was cut short (the client has already seen another)."""

_NO_USAGE = Usage()
_LONGEST_PATH = 200
_CLIENT_IDS = (b"x-client-request-id", b"x-request-id")
_READ = frozenset(
    (*_CLIENT_IDS, *SESSION_HEADERS, *AGENT_HEADERS, EXPLAIN_HEADER, PRIORITY_HEADER, b"anthropic-version")
)
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


@dataclass(slots=True)
class RequestContext:
    """One request, completed step by step from its headers to the end of its answer."""

    method: str
    path: str
    headers: Headers
    id: str = field(default_factory=lambda: f"req-{secrets.token_hex(12)}")
    started: float = field(default_factory=perf_counter)
    key: KeyEntry | None = None
    model: str = ""
    """Only ever a name from the table: it becomes a label."""
    body_read: bool = False
    """True once the whole body of the request has arrived."""
    admitted: AdmittedRequest | None = None
    """Its place within its key's limits."""
    slot: Slot | None = None
    """Its place on a group."""
    explanation: dict[str, Any] = field(default_factory=dict)
    """The reason for its group, if the client asked for it."""
    outgoing: EngineRequest | None = None
    """The request to an engine, until it is sent."""
    direct: DirectWriter | None = None
    """Writes the answer to the client's connection; None if its server has no such."""
    attempts: Attempts | None = None
    meter: UsageMeter | None = None
    hides_usage: bool = False
    """True if the usage of its stream was asked for in its client's place."""
    replay: ContinuableRequest | None = None
    """Its continuation on another group, if its deployment and its content allow one."""
    lost_apps: tuple[str, ...] = ()
    """Groups that were lost while they answered it."""
    replays: tuple[str, ...] = ()
    """Outcome of each try to continue it: `continued`, `failed`."""
    is_stream: bool = False
    status: int = 0
    """Status of the answer; 0 before it begins."""
    kind: str = ""
    """Reason of a failure, as in `sparkfleet_errors_total`; "" for none."""
    client_id: str = ""
    """The client's own name for its request, from `x-client-request-id` or `x-request-id`; "" without a usable one."""
    explains: str = ""
    """`1` or `only` if the client asked for the reason for its group; "" otherwise."""
    dialect: Dialect = "openai"
    """The client's API: Anthropic's clients name its version, also for paths that both APIs have."""
    session: str = ""
    """Name of the client's session, with that of the agent in it; "" without a usable one."""
    prompt: str = ""
    """Beginning of the prompt, if an admin has switched on that texts are kept."""
    _is_batch: bool = False
    seconds: float = 0.0
    usage: Usage = _NO_USAGE

    def __post_init__(self) -> None:
        """Reads its headers once."""
        agent = b""
        for name, value in self.headers:
            if name not in _READ:
                continue
            if name in _CLIENT_IDS:
                if _CLIENT_ID.fullmatch(value) and (name == _CLIENT_IDS[0] or not self.client_id):
                    self.client_id = value.decode("ascii")
            elif name == EXPLAIN_HEADER:
                self.explains = value.decode("ascii") if value in (b"1", b"only") else ""
            elif name in SESSION_HEADERS:
                if _CLIENT_ID.fullmatch(value):
                    self.session = value.decode("ascii")
            elif name in AGENT_HEADERS:
                agent = value if _CLIENT_ID.fullmatch(value) else b""
            elif name == PRIORITY_HEADER:
                self._is_batch = value == b"batch"
            elif name == b"anthropic-version":
                self.dialect = "anthropic"
        self.session += f" {agent.decode()}" if agent else ""
        if self.dialect == "openai":
            self.dialect = dialect_of(self.path)

    @property
    def priority(self) -> Priority:
        """Priority of the request: its key's, or a lower one that it names."""
        return "batch" if self._is_batch or self.key is None else self.key.limits.priority

    @property
    def head(self) -> bool:
        """True if the answer's body is not used."""
        return self.method == "HEAD"

    def lost_client(self, kind: str = "client_gone") -> None:
        """Records that the client is gone."""
        self.status, self.kind = CLIENT_GONE, kind

    def lost_engine(self) -> None:
        """Records that the answer was begun and will not be completed."""
        self.status, self.kind = CUT_SHORT, "engine_lost"

    def found_loop(self) -> None:
        """Records that the answer repeated itself and was ended."""
        self.status, self.kind = CUT_SHORT, "loop"

    def finish(self, metrics: GatewayMetrics) -> None:
        """Counts the finished request in the metrics."""
        self.seconds = perf_counter() - self.started
        metrics.requests.labels(self.model, path_label(self.path), str(self.status)).inc()
        metrics.duration.labels(self.model).observe(self.seconds)
        if self.key is not None:
            metrics.key_requests.labels(self.key.name, self.model).inc()
        if self.kind:
            metrics.errors.labels(self.model, self.kind).inc()
        if self.attempts is not None and self.attempts.is_external and self.meter is not None:
            metrics.external.labels(self.model, str(self.status)).inc()
        if self.attempts is not None and self.attempts.retries:
            metrics.retries.labels(self.model).inc(self.attempts.retries)
        for outcome in self.replays:
            metrics.replays.labels(self.model, outcome).inc()
        if self.admitted is not None and self.status >= 400 and self.status not in (CLIENT_GONE, CUT_SHORT):
            self.admitted.charge(0)
        if self.meter is not None:
            self._count_answer(self.meter, metrics)

    def _count_answer(self, meter: UsageMeter, metrics: GatewayMetrics) -> None:
        self.usage = meter.usage()
        # An engine that counts nothing sends about a token per event.
        output = meter.events if self.usage.output is None else self.usage.output
        if self.admitted is not None and self.status < 400:
            prompt = self.admitted.charged if self.usage.input is None else self.usage.input
            self.admitted.charge(output + prompt)
        metrics.tokens.labels(self.model, "input").inc(self.usage.input or 0)
        metrics.tokens.labels(self.model, "output").inc(self.usage.output or 0)
        if self.key is not None:
            metrics.key_tokens.labels(self.key.name, self.model, "input").inc(self.usage.input or 0)
            metrics.key_tokens.labels(self.key.name, self.model, "output").inc(self.usage.output or 0)
        if self.slot is not None and self.status < 400:
            self.slot.ended(output, is_stream=self.is_stream)
        if self.is_stream:
            metrics.chunks.labels(self.model).inc(meter.chunks)

    def log_line(self) -> dict[str, Any]:
        """Line of the access log: never a key, a prompt or an answer."""
        line: dict[str, Any] = {
            "id": self.id,
            "client_id": self.client_id or None,
            "key": self.key.name if self.key is not None else None,
            "model": self.model or None,
            "method": self.method,
            "path": self.path[:_LONGEST_PATH],
            "status": self.status,
            "error": self.kind or None,
            "ms": _milliseconds(self.seconds),
        }
        if self.attempts is not None:
            line |= {"group": self.attempts.group, "retries": self.attempts.retries}
        if self.replays:
            line["replays"] = self.replays
        if self.meter is not None:
            line |= {
                "first_byte_ms": _milliseconds(self.meter.first_s),
                "bytes": self.meter.size,
                "chunks": self.meter.chunks,
                "events": self.meter.events,
                "input_tokens": self.usage.input,
                "output_tokens": self.usage.output,
            }
        return line


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 1)
