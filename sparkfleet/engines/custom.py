"""`custom`: any container or command whose memory, port and health path the deployment declares. Nothing is known of it."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.engines.base import DraftTokenCounts, RankCommand, RankContext, checkpoint_mounts
from sparkfleet.engines.nccl_env import merged
from sparkfleet.engines.token_api import TextCompletions, TokenApi
from sparkfleet.errors import EngineError
from sparkfleet.planner.types.plan import Candidate


class Custom:
    """A workload that brings its own command line.

    Variables that begin with SPARKFLEET_ tell it where its checkpoint lies, by what name it is served and on which port it
    is expected. It asks for no token of ours, and has no metrics that we know: only a deployment that declares a health path
    has it asked while it serves.
    """

    name = "custom"
    health_path = "/health"
    """Where the deployment gives none; `RankCommand.health_path` is the one to ask."""
    metrics_path = ""
    running_metric = ""
    waiting_metric = ""
    tokens_metric = ""
    step_metrics: tuple[str, ...] = ()
    draft_metrics: tuple[str, ...] = ()
    token_api: TokenApi = TextCompletions()

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Nothing is known of it."""
        return DraftTokenCounts()

    def launch(self, candidate: Candidate, site: RankContext) -> RankCommand:
        """The deployment's command, or the image's own where it gives none. Raises EngineError for more than one rank."""
        if candidate.shape.ranks > 1:
            raise EngineError("A custom workload is one rank.", do="Leave out `parallel`.")
        if not candidate.command and candidate.runtime == "process":
            raise EngineError("A custom workload without an image needs a `command`.")
        port = site.port if candidate.port is None else candidate.port
        told = (
            ("SPARKFLEET_MODEL_PATH", site.model_path),
            ("SPARKFLEET_MODEL_NAME", site.served_name),
            ("SPARKFLEET_HOST", site.host),
            ("SPARKFLEET_PORT", str(port)),
        )
        return RankCommand(
            argv=candidate.command,
            env=merged(told, candidate.env),
            token_env="",
            mounts=checkpoint_mounts(site),
            ports=(port,),
            health_path=candidate.health,
        )
