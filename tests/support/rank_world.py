"""Ranks of a group on fake runtimes, which tests of `group.ranks` share."""

import pytest
from fake_runtime import FakeRuntime

from sparkfleet.errors import SparkfleetError
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.group_launch import GroupLaunch, RankPlacement
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.ranks.rank_set import Ranks
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.timeouts import Timeouts


def group_launch(nodes=("this",), **fields):
    candidate = Candidate(
        model="/models/tiny",
        shape=GroupShape(nodes=nodes, tp=len(nodes)),
        engine="sglang",
        engine_version="0.5.12",
        context=512,
        concurrency=4,
        speculation=Speculation(method="nextn", tokens=3),
    )
    placements = tuple(RankPlacement(node=node) for node in nodes)
    return GroupLaunch(deployment="tiny", generation=1, placements=placements, candidate=candidate, **fields)


class World:
    def __init__(self, tmp_path, **fields):
        self.launch = group_launch(**fields)
        self.paths = FleetPaths(tmp_path)
        self.runtimes = [FakeRuntime() for _ in self.launch.placements]
        self.holders = [
            LocalRank(self.paths, runtime, self.launch, rank, "s" * 64)
            for rank, runtime in enumerate(self.runtimes)
        ]
        self.waited = []
        self.ranks = self.anew()

    def anew(self):
        """As held by the group's next process."""
        return Ranks(self.launch, self.holders, Backoff(self.paths.root / "begun", Timeouts()))

    def write_log(self, text, rank=0):
        path = self.paths.rank_log(self.launch.rank_id(self.paths.label, rank).slug)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    async def take(self, ranks=None):
        ranks = ranks or self.ranks
        adopted = await ranks.adopt()
        return (adopted, True) if adopted else (await ranks.start(self.waited.append), False)

    async def refused(self):
        """The diagnosis of a start that raises."""
        with pytest.raises(SparkfleetError) as caught:
            await self.take()
        return await self.ranks.diagnose(caught.value, None)
