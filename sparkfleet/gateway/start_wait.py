"""Wait of one request for a start on demand, for minutes: it holds nothing that others need, and its stream lives."""

from __future__ import annotations

import time

from sparkfleet.gateway.admission.key_limiter import AdmittedRequest
from sparkfleet.gateway.body.body_budget import HeldBody
from sparkfleet.gateway.early_stream import EarlyStream
from sparkfleet.gateway.routing_table import ModelEntry
from sparkfleet.telemetry.loop_series import TimesByModel


class StartWait:
    """The wait of a request, of a model that is on demand.

    Args:
        admitted: its place among its key's requests, which others get meanwhile.
        held: its body.
        stream: its answer, which begins before the start has ended; None: it asks for no stream.
        waits: the histogram of such waits.
    """

    def __init__(
        self,
        admitted: AdmittedRequest,
        held: HeldBody,
        stream: EarlyStream | None,
        waits: TimesByModel,
    ) -> None:
        self._admitted = admitted
        self._held = held
        self.stream = stream
        self._waits = waits
        self._begun: tuple[str, float] | None = None
        """The model that it waits for, and the beginning (`perf_counter`)."""

    @property
    def is_stream(self) -> bool:
        """True if its client sees meanwhile that it lives."""
        return self.stream is not None

    def begin(self, model: ModelEntry) -> None:
        """Begins the wait, if it has not begun.

        Raises:
            ApiError: too many requests, or bytes of requests, wait for starts.
        """
        if self._begun:
            return
        self._admitted.begin_wait(model.retry_s(time.time()))
        self._held.begin_wait()
        self._begun = (model.name, time.perf_counter())
        if self.stream is not None:
            self.stream.begin(model.name)

    def end(self) -> None:
        """Ends the wait: its model has started, or the request is refused. May be called twice.

        A stream that has begun shows that it lives until the engine answers.
        """
        if self._begun is not None:
            name, began = self._begun
            self._waits[name].observe(time.perf_counter() - began)
        self._begun = None
        self._admitted.end_wait()
        self._held.end_wait()
        if self.stream is not None and not self.stream.has_begun:
            self.stream.end()
