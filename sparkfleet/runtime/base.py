"""Runtime of one rank on a node: a supervised process group or container (`process.py`)."""

from __future__ import annotations

import re
from collections.abc import Container
from enum import StrEnum
from typing import Literal, Protocol

from pydantic import Field

from sparkfleet.values import Value

_RANK_ID = re.compile(
    r"(?P<fleet>[^/]+)/(?P<deployment>.+)/g(?P<generation>\d+)/(?P<replica>\d+)/(?P<rank>\d+)"
)


class RankId(Value):
    """Id of a rank that survives restarts: `<fleet>/<deployment>/g<generation>/<replica>/<rank>`."""

    fleet: str
    deployment: str
    generation: int
    replica: int
    rank: int

    def __str__(self) -> str:
        return f"{self.fleet}/{self.deployment}/g{self.generation}/{self.replica}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> RankId | None:
        """The id that `str` wrote; None for anything else."""
        match = _RANK_ID.fullmatch(text)
        if match is None:
            return None
        return cls(
            fleet=match["fleet"],
            deployment=match["deployment"],
            generation=int(match["generation"]),
            replica=int(match["replica"]),
            rank=int(match["rank"]),
        )

    @property
    def slug(self) -> str:
        """The same, safe as a file name."""
        return str(self).replace("/", "_")


class RankFile(Value):
    """A file that is on the node before the rank starts. Holds no secrets."""

    path: str
    text: str
    executable: bool = False


class ContainerSpec(Value):
    """Container of a rank. Its argv has the labels that identify it later: see `engines.container`."""

    tool: Literal["docker", "podman"]
    image: str


class KvFiles(Value):
    """KV that a rank keeps on the disk: its supervisor removes what was used longest ago."""

    path: str
    """Directory of one set of weights and settings, in one of its deployment."""
    limit_bytes: int


class Forward(Value):
    """Forwarder of a rank whose engine checks no token: it listens on `host` and the rank's port, and checks the token."""

    host: str
    target_port: int
    """Port of the engine on loopback."""
    token: str = Field(repr=False)
    metrics_token: str = Field(repr=False)
    """Opens `metrics_path` and nothing else."""
    metrics_path: str = ""


class RankSpec(Value):
    """Everything needed to run one rank.

    `secret_env` and the tokens of `forward` are never printed, logged or kept: they are in a 0600 file that is removed
    once it was read, and if the engine prints one of them (of eight characters or more), the log has `***` instead.
    """

    id: RankId
    digest: str
    """Identity of what it runs: a running rank with the same one is adopted instead of started again."""
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str], ...] = ()
    files: tuple[RankFile, ...] = ()
    container: ContainerSpec | None = None
    """With one, `argv` is its `TOOL run …`, in the foreground, and `env` and `secret_env` are the tool's own: the rank
    itself gets the variables that `argv` passes on (`--env NAME`). `pid` in its status is the tool's. None: `argv` is the
    engine."""
    kv_files: KvFiles | None = None
    prepare: tuple[str, ...] = ()
    """A command that must succeed before `argv` starts, e.g. building a checkpoint; () for none."""
    log_path: str
    host: str = "127.0.0.1"
    port: int
    declared_port: int | None = None
    """Port of loopback on which its deployment has it listen; a start needs it free. None: a port that was chosen free."""
    forward: Forward | None = None
    """With one, `port` is the forwarder's; None: the engine's own."""
    lease_s: float = 30.0
    """Seconds without an owner after which the rank ends by itself."""
    grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL of the whole process group when it is stopped."""


class Phase(StrEnum):
    """Phase of a rank's life."""

    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


ADOPTABLE = (Phase.PREPARING, Phase.RUNNING)
"""Phases in which the next holder of a rank may adopt it."""


class RankStatus(Value):
    """Report of a rank's supervisor."""

    id: RankId
    digest: str
    phase: Phase
    port: int
    pid: int | None = None
    """The engine's own process, None before it is started."""
    started_at: float
    """Seconds of the node's monotonic clock: it orders the ranks of one boot, and names the run of a rank. Its processes
    have it as a label, its container as well."""
    exit_code: int | None = None
    """Exit code of the engine (or of `prepare`); negative: the signal that ended it. Set in phase EXITED, unless only the
    rank's holder was lost."""
    reason: str = ""
    owned: bool = False


class Rank(Protocol):
    """A rank that this process owns: while the object is open, the rank's lease holds."""

    async def status(self) -> RankStatus:
        """Reads the current status. Raises NodeError if the supervisor is gone."""
        ...

    async def wait(self) -> RankStatus:
        """Returns when the rank has exited, with any code, or its supervisor is gone (then phase is EXITED too).

        No process of the rank is left by then: those that outlived the engine had a second, or `grace_s`, to end.
        """
        ...

    async def stop(self) -> RankStatus:
        """Sends SIGTERM, then after the grace SIGKILL, to everything the rank started; returns when no process is left.

        Raises NodeError if its supervisor cannot be ended.
        """
        ...

    async def close(self) -> None:
        """Releases the rank without stopping it: the lease starts to run."""
        ...


class Runtime(Protocol):
    """Starts, adopts, finds and sweeps ranks on one node."""

    async def start(self, spec: RankSpec) -> RankStatus:
        """Starts a supervisor for the rank and returns at once, with no owner yet.

        Idempotent: a live supervisor for the same id and digest stays, and its status is returned.
        Raises NodeError if the same id runs with another digest, or the supervisor does not start.
        """
        ...

    async def own(self, id_: RankId) -> Rank | None:
        """Takes the lease of a running rank; None if there is none, it is stopping, or it has another owner.

        Also returns a rank that ended by itself moments ago without an owner: its `wait` returns the exit at once.
        """
        ...

    async def post_mortem(self, id_: RankId) -> RankStatus | None:
        """Exit of the rank's last run; None if there was none, or it was swept."""
        ...

    async def list(self, *, ended_s: float = 0.0) -> tuple[RankStatus, ...]:
        """Ranks of this fleet whose supervisor lives on this node, and those that ended within the last `ended_s`."""
        ...

    async def sweep(self, keep: Container[RankId], before: float | None = None) -> tuple[str, ...]:
        """Ends every process and container with this fleet's rank labels that is not in `keep`; returns lines about them.

        `keep` is called for each label, not for a list made before, so it also covers a rank whose supervisor is too busy
        to answer.

        Args:
            before: seconds of this node's monotonic clock; runs that began later are left alone, also those of ranks that
                are not in `keep`. None: the beginning of the call.
        """
        ...
