"""Record of one request, and the metrics and the log line that are made of it at its end."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sparkfleet.gateway.access.allowed_paths import path_label
from sparkfleet.gateway.admission.key_limiter import AdmittedRequest
from sparkfleet.gateway.client_request import ClientRequest
from sparkfleet.gateway.engine.exchange import EngineExchange
from sparkfleet.gateway.engine.usage import Usage, UsageMeter
from sparkfleet.gateway.routing_table import KeyEntry
from sparkfleet.telemetry.metrics import GatewayMetrics

CLIENT_GONE = 499
"""Status that is counted if the client was gone before the answer (nginx's convention)."""
CUT_SHORT = 502
"""Status that is counted for an answer that was cut short (the client has already seen another)."""

_NO_USAGE = Usage()
_LONGEST_PATH = 200


@dataclass(slots=True)
class RequestRecord:
    """A request's outcome so far: each stage notes what the next ones, the answer's headers and the end need."""

    request: ClientRequest
    key: KeyEntry | None = None
    """None until it is authenticated."""
    model: str = ""
    """Only ever a name from the table: it becomes a label."""
    prompt: str = ""
    """Beginning of the prompt, if an admin has switched on that texts are kept."""
    body_read: bool = False
    """True once the whole body of the request has arrived."""
    admitted: AdmittedRequest | None = None
    """Its place within its key's limits."""
    explanation: dict[str, Any] | None = None
    """The reason for its group; None if the client did not ask for it, and until a group is chosen."""
    exchange: EngineExchange | None = None
    """None until it has a slot on a group."""
    status: int = 0
    """Status of the answer; 0 before it begins."""
    kind: str = ""
    """Reason of a failure, as in `sparkfleet_errors_total`; "" for none."""
    seconds: float = 0.0
    usage: Usage = _NO_USAGE

    @property
    def meter(self) -> UsageMeter | None:
        """Meter of an engine's answer; None if none has begun one."""
        return self.exchange.meter if self.exchange is not None else None

    def note_client_gone(self, kind: str = "client_gone") -> None:
        """Records that the client is gone."""
        self.status, self.kind = CLIENT_GONE, kind

    def note_engine_lost(self) -> None:
        """Records that the answer was begun and will not be completed."""
        self.status, self.kind = CUT_SHORT, "engine_lost"

    def note_loop(self) -> None:
        """Records that the answer repeated itself and was ended."""
        self.status, self.kind = CUT_SHORT, "loop"

    def finish(self, metrics: GatewayMetrics) -> None:
        """Counts the finished request in the metrics, and what its key and its group's speed are to learn of it."""
        self.seconds = perf_counter() - self.request.started
        metrics.requests[self.model, path_label(self.request.path), str(self.status)] += 1
        metrics.duration[self.model].observe(self.seconds)
        if self.key is not None:
            metrics.key_requests[self.key.name, self.model] += 1
        if self.kind:
            metrics.errors[self.model, self.kind] += 1
        if self.admitted is not None and self.status >= 400 and self.status not in (CLIENT_GONE, CUT_SHORT):
            self.admitted.charge(0)
        if self.exchange is not None:
            self._count_exchange(self.exchange, metrics)

    def _count_exchange(self, exchange: EngineExchange, metrics: GatewayMetrics) -> None:
        if exchange.attempts.retries:
            metrics.retries[(self.model,)] += exchange.attempts.retries
        for outcome in exchange.replays:
            metrics.replays[self.model, outcome] += 1
        if exchange.meter is not None:
            if exchange.attempts.is_external:
                metrics.external[self.model, str(self.status)] += 1
            self._count_answer(exchange, exchange.meter, metrics)

    def _count_answer(self, exchange: EngineExchange, meter: UsageMeter, metrics: GatewayMetrics) -> None:
        self.usage = meter.usage()
        # An engine that counts nothing sends about a token per event.
        output = meter.events if self.usage.output is None else self.usage.output
        if self.admitted is not None and self.status < 400:
            prompt = self.admitted.charged if self.usage.input is None else self.usage.input
            self.admitted.charge(output + prompt)
        metrics.tokens[self.model, "input"] += self.usage.input or 0
        metrics.tokens[self.model, "output"] += self.usage.output or 0
        if self.key is not None:
            metrics.key_tokens[self.key.name, self.model, "input"] += self.usage.input or 0
            metrics.key_tokens[self.key.name, self.model, "output"] += self.usage.output or 0
        if self.status < 400:
            exchange.slot.note_end(output, is_stream=exchange.is_stream)
        if exchange.is_stream:
            metrics.chunks[(self.model,)] += meter.chunks

    def log_line(self) -> dict[str, Any]:
        """Line of the access log: never a key, a prompt or an answer."""
        line: dict[str, Any] = {
            "id": self.request.id,
            "client_id": self.request.client_id or None,
            "key": self.key.name if self.key is not None else None,
            "model": self.model or None,
            "method": self.request.method,
            "path": self.request.path[:_LONGEST_PATH],
            "status": self.status,
            "error": self.kind or None,
            "ms": _milliseconds(self.seconds),
        }
        if self.exchange is not None:
            attempts = self.exchange.attempts
            line |= {"group": attempts.group, "retries": attempts.retries}
            if self.exchange.replays:
                line["replays"] = self.exchange.replays
        if (meter := self.meter) is not None:
            line |= {
                "first_byte_ms": _milliseconds(meter.first_s),
                "bytes": meter.size,
                "chunks": meter.chunks,
                "events": meter.events,
                "input_tokens": self.usage.input,
                "output_tokens": self.usage.output,
            }
        return line


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 1)
