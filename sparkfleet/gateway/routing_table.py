"""Routing table of the gateway: models, their state, and the keys that may use them.

The controller publishes a new table at every change; the gateway replaces its own as a whole. If the controller is gone, the
last table stays in use.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkfleet.gateway.listening import GatewayListening
from sparkfleet.values import Value

_LONGEST_RETRY_S = 3600
GROUP_APP = re.compile(r"(.+)--(g\d+)-(\d+)")
"""The Serve application of a group: `app_name` of `controlplane/state/status.py`."""

ModelState = Literal["ready", "starting", "unloaded", "stopped", "failed", "drained"]


Priority = Literal["interactive", "batch"]
"""`batch` waits for `interactive`."""
_Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]


class KeyLimits(Value):
    """Limits of a key, counted by each gateway, and its rights. None: no limit."""

    requests_per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens_per_minute: _Limit | None = None
    """Tokens of prompts and answers."""
    concurrent: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests at once."""
    priority: Priority = "interactive"
    """Priority of requests that name none."""
    expires: float | None = None
    """Unix seconds from which the key is refused; None: never."""
    admin: bool = False
    """True if it may read logs and change the fleet over the page's API, and sees every request there."""
    inference: bool = True
    """True if it may send requests to models. False only with `admin`: a key without any right is revoked instead."""

    @model_validator(mode="after")
    def _has_a_right(self) -> Self:
        if not (self.inference or self.admin):
            raise ValueError("a key needs inference or admin; `sparkfleet keys revoke NAME` takes both")
        return self


class FormerKey(Value):
    """The digest that a key had before it was rotated, and until when it is accepted, Unix seconds."""

    sha256: str
    until: float


PASSING_KEY = "sparkfleet-ask-"
"""Beginning of the names of keys that a command makes for itself and revokes at its end."""


class KeyEntry(Value):
    """An API key as it is stored: the key itself is shown once, when it is created, and never stored."""

    id: str
    name: str
    sha256: str
    """Lower-case hexadecimal digest of the key."""
    limits: KeyLimits = KeyLimits()
    former: FormerKey | None = None
    """The digest before the last rotation, while it is accepted."""
    earlier: tuple[FormerKey, ...] = ()
    """The digests before that one, each while it is accepted."""

    @property
    def passing(self) -> bool:
        """True for a key of one command. Nobody has to renew it."""
        return self.name.startswith(PASSING_KEY)

    @cached_property
    def digests(self) -> tuple[tuple[str, float], ...]:
        """Each accepted digest, and the Unix seconds until which it is."""
        return (self.sha256, math.inf), *((one.sha256, one.until) for one in self.formers)

    @property
    def formers(self) -> tuple[FormerKey, ...]:
        """All digests before the present one, the newest first."""
        return self.earlier if self.former is None else (self.former, *self.earlier)


class GroupSpeed(Value):
    """Predicted speed of a group, tokens per second."""

    prefill_tps: Annotated[float, Field(gt=0)]
    alone_tps: Annotated[float, Field(gt=0)]
    """Of the answer of one request alone."""
    together_tps: float = 0.0
    """Of all answers together, at `concurrency` requests."""
    concurrency: int = 1


class ExternalAddress(Value):
    """An endpoint outside the fleet. Its key is read from a file on the gateway's node, and is not in the table."""

    url: str
    """Its base URL."""
    model: str
    """The model's name there."""
    key_file: str | None = None
    when: Literal["unavailable", "busy"] = "unavailable"
    """The case in which requests go to it: if no ready group can serve them, or also if they would have to wait."""


class GroupEntry(Value):
    """One group of a deployment, and its capabilities. None: not known, which excludes nothing."""

    app: str
    """Its Serve application."""
    ready: bool = True
    """True if it takes requests. The others are here for their future capabilities."""
    vision: bool | None = None
    """True if it takes images."""
    tools: bool | None = None
    """True if it parses its model's tool calls."""
    context: int | None = None
    """Longest prompt plus answer, in tokens."""
    concurrency: int | None = None
    """Requests that it decodes at once."""
    speed: GroupSpeed | None = None
    """Predicted speed; the gateways correct it by what they measure."""
    measured: float | None = None
    """Measured over predicted decode speed, of one short request at its start."""
    weights: str = ""
    """Mark of its weights and its generation, if its engine returns ids of tokens: a stream of one group can be continued on
    another with the same mark. "" if it does not."""
    external: ExternalAddress | None = None
    """Its address, if it is an endpoint outside the fleet."""

    @property
    def name(self) -> str:
        """The group's name, as `status`, `drain` and `logs` have it; of an endpoint outside the fleet its `app`."""
        return GROUP_APP.sub(r"\1/\2/\3", self.app)


class ModelEntry(Value):
    """One public model name."""

    name: str
    groups: tuple[GroupEntry, ...] = ()
    """Every group that serves it or is to serve it."""
    external: tuple[GroupEntry, ...] = ()
    """Endpoints outside the fleet, for requests that these groups cannot serve."""
    deployment: str
    """Serve deployment inside each group's application."""
    state: ModelState
    detail: str = ""
    """Its current activity, for people: "loading weights, 40 of 100 GiB"."""
    retry_after_s: int = 5
    """`Retry-After` while it is not ready and the end of its start is not predicted, seconds."""
    ready_at: float | None = None
    """Unix seconds at which a start that is under way will probably have ended."""
    created: int = 0
    """Seconds since the epoch, as `/v1/models` reports it."""
    context: int | None = None
    """Longest prompt plus answer, in tokens."""
    keys: tuple[str, ...] = ()
    """Names of the keys that may use it; empty means every key."""

    media_domains: tuple[str, ...] = ()
    """Hosts from which requests may name images, video and sound by URL."""
    endpoints: tuple[str, ...] = ()
    """Paths beside the usual ones that clients may use; `/*` at the end: all below."""
    aliases: tuple[str, ...] = ()
    """Further names under which clients may ask for it."""
    loop_tokens: int | None = None
    """Repeated tokens after which a stream is ended; None: never."""
    replay: bool = False
    """True if greedy streams of a lost group are continued on another one."""
    on_demand: bool = False
    """True if its requests start it, and wait for that."""

    @property
    def awaits_start(self) -> bool:
        """True if requests wait until it has started, instead of being refused."""
        return self.on_demand and self.state in ("unloaded", "starting")

    def retry_s(self, now: float) -> int:
        """Seconds after which a request should be tried again. `now`: Unix seconds."""
        if self.ready_at is None or self.ready_at <= now:
            return self.retry_after_s
        return min(_LONGEST_RETRY_S, math.ceil(self.ready_at - now))

    @property
    def apps(self) -> tuple[str, ...]:
        """Serve applications that serve it, one per group that is ready."""
        return tuple(group.app for group in self.groups if group.ready)

    def allows(self, key: KeyEntry) -> bool:
        """True if `key` may use this model."""
        return not self.keys or key.name in self.keys


class RoutingTable(Value):
    """The gateway's whole knowledge of the fleet. `version` is 0 before the first table."""

    version: int = 0
    models: dict[str, ModelEntry] = Field(default_factory=dict)
    keys: tuple[KeyEntry, ...] = ()
    listening: GatewayListening | None = None
    """Address that the gateway is to listen at; None: the one that it has."""

    def named(self, name: str, key: KeyEntry) -> ModelEntry | None:
        """The model of that name; of those with that alias the first, by name, that `key` may use. None: there is none."""
        found = self.models.get(name)
        if found is not None:
            return found
        aliased = [entry for _, entry in sorted(self.models.items()) if name in entry.aliases]
        return next((entry for entry in aliased if entry.allows(key)), aliased[0] if aliased else None)

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """Paths that some deployment names."""
        return tuple(path for entry in self.models.values() for path in entry.endpoints)

    def visible_to(self, key: KeyEntry) -> list[ModelEntry]:
        """The models that `key` may use, by name."""
        return [entry for _, entry in sorted(self.models.items()) if entry.allows(key)]
