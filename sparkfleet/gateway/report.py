"""Reports of gateway replicas and entries to the controller."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from sparkfleet.values import Value


class KeyUsage(Value):
    """Usage of one model with one key since a replica started."""

    key: str
    """Name of the key."""
    model: str
    requests: int = 0
    uncounted: int = 0
    """Requests of them whose answer had no token count."""
    input: int = 0
    """Tokens of prompts."""
    output: int = 0


class FormerUsage(Value):
    """Totals of a replica that may have ended before the controller stored them."""

    replica: str
    usage: tuple[KeyUsage, ...]


class EndpointCertificate(Value):
    """Certificate that the endpoint presents."""

    expires_at: float
    """Unix seconds."""
    sha256: str
    """Of the certificate, hexadecimal: a program of ours recognises the endpoint by it, under any address."""
    authority: str = ""
    """PEM certificate of the fleet's own authority, if that made it; "" for a given certificate."""


class EntryReport(Value):
    """An entry: a node's address at which the endpoint is reached."""

    node: str
    url: str = ""
    """Base URL for OpenAI clients."""
    listening: bool = False
    trouble: str = ""
    """Reason why clients do not reach the gateway there; "" if they do."""
    connections: int = 0
    after: str = ""
    """The end of the process before, if that is known."""

    @property
    def reached(self) -> bool:
        """True if its clients reach the gateway."""
        return self.listening and not self.trouble


class OnDemandUse(Value):
    """Use of a deployment that is on demand, as one replica of the gateway sees it."""

    in_flight: int = 0
    """Requests in flight, those that wait for its start included."""
    waiting: int = 0
    """Those of them that wait for its start."""
    idle_s: float = 0.0
    """Seconds since its last request ended, or since the replica started if there was none; 0 while one is in flight."""
    ready_s: float | None = None
    """Seconds for which it has been ready; None if it is not."""


class GatewayReport(Value):
    """A gateway replica. `at` is Unix seconds."""

    replica: str
    url: str
    metrics_url: str
    at: float
    waiting: int = 0
    """Requests that wait for a free slot of a group."""
    queued: Mapping[str, int] = Field(default_factory=dict)
    """The same by model, for those that any wait for."""
    on_demand: Mapping[str, OnDemandUse] = Field(default_factory=dict)
    """Use of each model of its table that is on demand."""
    external_trouble: str = ""
    """Failures of endpoints outside the fleet, in words; "" for none."""
    failing: tuple[str, ...] = ()
    """Groups that count as ready and whose requests fail, each as a sentence with its last failure."""
    trouble: str = ""
    """Reason why it does not listen at the address of its table; "" if it does."""
    after: str = ""
    """The end of the replica before, if that is known."""
    keys_used: Mapping[str, float] = Field(default_factory=dict)
    """Unix seconds of the last request with each key, by the key's id, since the replica started."""
    certificate: EndpointCertificate | None = None
    """None: it speaks HTTP without TLS."""
    usage: tuple[KeyUsage, ...] = ()
    """Totals since the replica started."""
    former: tuple[FormerUsage, ...] = ()
    """Usage that former replicas have left, until it is stored."""
    usage_trouble: str = ""
    """Files of former usage that cannot be used, in words; "" for none."""
