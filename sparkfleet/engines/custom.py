"""`custom`: any container or command whose memory, port and health path the deployment declares."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.engines.base import (
    DraftTokenCounts,
    PositionCounter,
    RankCommand,
    RankContext,
    checkpoint_mounts,
)
from sparkfleet.engines.nccl_env import merged
from sparkfleet.engines.token_api import TextCompletions, TokenApi
from sparkfleet.errors import EngineError
from sparkfleet.planner.types.plan import Candidate


class Custom:
    """A workload with its own command line.

    Variables that begin with SPARKFLEET_ pass it the checkpoint's directory, the served name, and the address and port to
    listen on. It checks no internal token, and its metrics are unknown: only a declared health path makes the group probe
    it while it serves.
    """

    name = "custom"
    health_path = "/health"
    """Empty: the path depends on the deployment, and is in `RankCommand.health_path`."""
    metrics_path = ""
    running_metric = ""
    waiting_metric = ""
    tokens_metric = ""
    step_metrics: tuple[str, ...] = ()
    draft_metrics: tuple[str, ...] = ()
    draft_positions: PositionCounter | None = None
    token_api: TokenApi = TextCompletions()
    checks_token = False
    always_forwarded = False

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Zero: its draft tokens are unknown."""
        return DraftTokenCounts()

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """The deployment's command, or the image's own if it declares none. Raises EngineError for more than one rank."""
        if candidate.shape.ranks > 1:
            raise EngineError(
                "A custom workload runs as one rank.", do="Remove `parallel` from the deployment."
            )
        if not candidate.command and candidate.runtime == "process":
            raise EngineError(
                "A custom workload without an image needs a `command`.",
                do="Set `command` or `image` in the deployment.",
            )
        port = context.port if candidate.port is None else candidate.port
        declared = (
            ("SPARKFLEET_MODEL_PATH", context.model_path),
            ("SPARKFLEET_MODEL_NAME", context.served_name),
            ("SPARKFLEET_HOST", context.host),
            ("SPARKFLEET_PORT", str(port)),
        )
        return RankCommand(
            argv=candidate.command,
            env=merged(declared, candidate.env),
            token_env="",
            mounts=checkpoint_mounts(context),
            health_path=candidate.health,
        )
