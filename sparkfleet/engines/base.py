"""How an engine is told what to do. Pure: values in, values out; nothing here starts anything."""

from __future__ import annotations

from typing import Protocol

from sparkfleet.planning.plan import Candidate
from sparkfleet.values import Value


class RankSite(Value):
    """Where one rank is to run, known only when a group starts."""

    rank: int
    python: str
    """Interpreter of the environment that holds the engine, on that node."""
    model_path: str
    """Directory of the checkpoint on that node."""
    served_name: str
    """The public model name."""
    host: str
    """Address that the engine binds: loopback, or the node's address on a rail. Never every interface."""
    port: int
    leader: str = "127.0.0.1"
    """Address of rank 0 on the rail, for the rendezvous of a group of more than one rank."""
    leader_port: int = 0


class RankLaunch(Value):
    """Exactly what to run for one rank."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Set on top of a clean environment. No secrets: these may be shown."""
    token_env: str
    """Name of the variable that carries the internal bearer token."""


class Engine(Protocol):
    """One engine: argv and environment per rank, and what it offers over HTTP."""

    name: str
    health_path: str
    """Answers 200 when the server is up; says nothing about whether it can generate."""
    metrics_path: str
    running_metric: str
    """Gauge: requests being decoded."""
    waiting_metric: str
    """Gauge: requests queued in the engine."""
    tokens_metric: str
    """Counter: tokens generated."""

    def launch(self, candidate: Candidate, site: RankSite) -> RankLaunch:
        """The command line and environment of one rank."""
        ...
