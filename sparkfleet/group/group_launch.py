"""Everything that a group's actor needs to start its engine, and the identity of what its ranks then run."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Self

from pydantic import AliasChoices, ConfigDict, Field

from sparkfleet.engines.rendezvous import RankNetwork
from sparkfleet.group.group_name import NamedGroupValue
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.runtime.base import RankId
from sparkfleet.specs.timeouts import Timeouts
from sparkfleet.values import Value

SILENCE_S = 900.0
"""Seconds without a log line of any rank after which a start counts as hung, unless the deployment sets `silence`: longer
than any known silence (the load of a 235 B model)."""

ALONE = "127.0.0.1"
"""Address of the engine in a fleet of one node."""


class RankPlacement(Value):
    """The node of one rank, and its addresses for the other ranks and the gateways.

    Its JSON, and that of `GroupLaunch`, keeps the names of earlier releases: Ray Serve restores applications that they
    deployed, and the digest of a running engine is made of them.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    node: str
    address: str = ALONE
    """Address that its engine binds."""
    network: RankNetwork | None = Field(
        default=None, validation_alias=AliasChoices("network", "meeting"), serialization_alias="meeting"
    )
    """The network of its rank; None in a group of one."""


CUSTOM_DRAIN_S = 30.0
"""The longest drain of a custom workload: open connections count as its requests, also idle ones, and its successor waits
for its port."""


class GroupLaunch(NamedGroupValue):
    """Everything that a group's actor needs to start its engine."""

    model_config = ConfigDict(serialize_by_alias=True)

    rung: int = 0
    """Index of the rung in its ladder, from 0."""
    candidate: Candidate
    needs: int = 0
    """Predicted memory of a rank, bytes; it does not start if less is available."""
    placements: tuple[RankPlacement, ...] = Field(
        validation_alias=AliasChoices("placements", "seats"), serialization_alias="seats"
    )
    """One per rank, in order."""
    silence_s: float = SILENCE_S
    """Time without a log line of any rank during a start, seconds; also limits the first token, if that is less."""
    patience_s: float = Timeouts().proof_s
    """Time limit of a probe for one token after its counters stopped, seconds."""
    timeouts: Timeouts = Timeouts()
    """Time limits of its health, and pauses before it starts again."""
    probed: bool = False
    """True if its health is checked while it serves: a custom workload with a declared health path."""

    @classmethod
    def of_serve(cls, stored: str) -> Self:
        """Reads a launch as Serve keeps it, JSON. That of an earlier release has its own drain time, which is not used."""
        fields = json.loads(stored)
        fields.pop("drain_s", None)
        return cls.model_validate_json(json.dumps(fields))

    @property
    def drain_s(self) -> float:
        """Time in which its requests may end once it is stopped, seconds."""
        longest = self.timeouts.drain_s
        return min(longest, CUSTOM_DRAIN_S) if self.candidate.engine == "custom" else longest

    def rank_id(self, fleet: str, rank: int = 0) -> RankId:
        """Id of a rank on a node where the fleet has this label."""
        return RankId(
            fleet=fleet,
            deployment=self.deployment,
            generation=self.generation,
            replica=self.replica,
            rank=rank,
        )


def launch_digest(launch: GroupLaunch, token_secret: str) -> str:
    """Identity of what the ranks of a group run, 16 hexadecimal digits, from the plan and the secret of the engine's token.

    Paths, ports and the release of sparkfleet do not count: under another release an engine goes on with the command that
    it was started with. Nor does a field that a later release adds to a plan, as long as it has its default.
    """
    planned = launch.model_dump(mode="json", include={"candidate", "placements"}, exclude_defaults=True)
    content = json.dumps(planned, sort_keys=True).encode()
    return hmac.new(token_secret.encode(), b"sparkfleet launch\0" + content, hashlib.sha256).hexdigest()[:16]
