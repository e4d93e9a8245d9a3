"""Clients of a simulated fleet: bursts and conversations for models on demand, and the gateway that they use."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from sparkfleet.lab.simulation.gateway import RequestEnd, SimulatedGateway, SimulatedRequest
from sparkfleet.lab.simulation.timeline import Timeline

DEMANDED = ("c", "d", "e")
"""Deployments on demand of the simulated users."""
LONGEST_REQUEST_S = 60.0
"""Longest request on a group, simulated seconds."""
AGAIN_S = 5.0
"""Seconds after which a client tries a request again that was refused."""
TRIES = 3
"""Times that a client tries one: those of OpenAI and Anthropic try twice more."""
LEAVES_S = 30.0
"""Seconds after which a gateway that is replaced has ended its requests."""
LONG_GAP_S = 8.0


@dataclass
class ModelUse:
    """Requests of all clients for a model, as they are."""

    used_at: float = float("-inf")
    """Moment at which the last one ended that was not refused, or the present if one is in flight, simulated seconds."""
    waiting_since: float | None = None
    """Since when requests wait for its start, those that are tried again included; None: none waits."""
    waited_at: float = float("-inf")
    """Moment at which one waited last, simulated seconds."""
    gap_ended_at: float = float("-inf")
    """Moment at which the last gap of `LONG_GAP_S` or more between two requests ended, simulated seconds."""


class SimulatedClients:
    """Everybody who sends requests.

    Args:
        time: the simulated clock.
        chance: of their own, so that a seed without them gives the run that it gave before there were any.
        is_there: True if the engine of an application serves.
    """

    def __init__(self, time: Timeline, chance: random.Random, is_there: Callable[[str], bool]) -> None:
        self._time = time
        self._chance = chance
        self._is_there = is_there
        self.gateways = [SimulatedGateway("gateway1", time, is_there)]
        """Replicas that serve; the last one takes new requests."""
        self.use = {name: ModelUse() for name in DEMANDED}
        self.ends: list[tuple[str, RequestEnd]] = []
        """Model and end of each request that has ended."""
        self.active = False
        """True while they send new requests."""

    # what they do

    def burst(self, model: str | None = None) -> None:
        """Several requests at once for one model; None: for any."""
        model = model or self._model()
        for _ in range(self._chance.randrange(1, 6)):
            self._send(model, self._lasts())

    def impatient(self) -> None:
        """A client that leaves if it has to wait."""
        self._send(self._model(), self._lasts(), patience_s=self._chance.uniform(1, 90))

    def converse(self) -> None:
        """An agent: one request after another, with pauses."""
        self._turns(self._model(), self._time.seconds + self._chance.uniform(120, 2400), self._pace())

    def alternate(self) -> None:
        """Two agents with different models at the same time."""
        until = self._time.seconds + self._chance.uniform(600, 3000)
        for model in self._chance.sample(DEMANDED, 2):
            self._turns(model, until, self._pace())

    def replace_gateway(self, *, dies: bool = False) -> None:
        """A new replica takes the new requests, and the one before finishes its own, unless it dies with them."""
        old = self.gateways[-1]
        number = int(old.name.removeprefix("gateway")) + 1
        self.gateways.append(SimulatedGateway(f"gateway{number}", self._time, self._is_there))
        self.gateways[-1].follow(old.table)

        def end() -> None:
            if old in self.gateways:
                self.gateways.remove(old)
                old.close()

        if dies:
            end()
        else:
            self._time.after(self._chance.choice((0.0, LEAVES_S)), end)

    def pass_time(self) -> None:
        """Ends requests that are over, and notes the use of each model."""
        for gateway in self.gateways:
            gateway.pass_time()
        now = self._time.seconds
        for model, use in self.use.items():
            if any(gateway.in_flight(model) for gateway in self.gateways):
                use.used_at = now
            if any(gateway.waits(model) for gateway in self.gateways):
                use.waiting_since = now if use.waiting_since is None else use.waiting_since
                use.waited_at = now
            elif now - use.waited_at > 2 * AGAIN_S or self._is_served(model):
                use.waiting_since = None

    def _is_served(self, model: str) -> bool:
        return any(one.model == model for gateway in self.gateways for one in gateway.served)

    # one request

    def _model(self) -> str:
        return self._chance.choice(DEMANDED)

    def _lasts(self) -> float:
        return self._chance.choice((0.05, 1.0, 10.0, LONGEST_REQUEST_S))

    def _pace(self) -> tuple[float, float]:
        """Seconds of each request and of each pause of an agent."""
        return self._chance.choice((0.05, 1.0, 20.0)), self._chance.choice((0.5, 4.0, 7.0))

    def _turns(self, model: str, until: float, pace: tuple[float, float]) -> None:
        lasts_s, pause_s = pace

        def turn() -> None:
            if self.active and self._time.seconds < until:
                self._send(
                    model,
                    lasts_s,
                    then=lambda end: self._time.after(pause_s if end == "served" else AGAIN_S, turn),
                )

        turn()

    def _send(
        self,
        model: str,
        lasts_s: float,
        *,
        patience_s: float = float("inf"),
        then: Callable[[RequestEnd], object] = lambda end: None,
        tries: int = TRIES,
    ) -> None:
        def ended(end: RequestEnd) -> None:
            self.ends.append((model, end))
            if end in ("refused", "lost") and tries > 1 and self.active:
                self._time.after(
                    AGAIN_S,
                    lambda: self._send(model, lasts_s, patience_s=patience_s, then=then, tries=tries - 1),
                )
            else:
                then(end)

        use, now = self.use[model], self._time.seconds
        request = SimulatedRequest(model, lasts_s, leaves_at=now + patience_s, then=ended)
        if not self.gateways[-1].take(request):
            return
        if now - use.used_at >= LONG_GAP_S:
            use.gap_ended_at = now
        use.used_at = now
