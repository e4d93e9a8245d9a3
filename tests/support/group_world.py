"""A group on fakes, which the tests of `group/group.py` share: a runtime per node, and a fake engine on the first."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from fake_runtime import FakeRuntime

from sparkfleet.group import engine_client, serving_watch
from sparkfleet.group.crash_backoff import Backoff
from sparkfleet.group.end_note import EndNote
from sparkfleet.group.engine_load import Load
from sparkfleet.group.group import Group
from sparkfleet.group.group_launch import GroupLaunch, RankPlacement
from sparkfleet.group.probe import Probe
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.ranks import memory_watch
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.ranks.rank_node import spec_here as spec_of
from sparkfleet.group.ranks.rank_spec import Ports
from sparkfleet.group.ranks.remote_rank import RankObservation, RemoteRank
from sparkfleet.group.start.speed import MeasuringTurns
from sparkfleet.group.tasks import cancel
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.specs.timeouts import Timeouts

SECRET = "s" * 64
ROOT = Path("/nowhere/state/home")
TWO = (RankPlacement(node="a"), RankPlacement(node="b"))


def group_launch(**fields):
    candidate = Candidate(
        model="/models/tiny",
        shape=GroupShape(nodes=("this",)),
        engine="vllm",
        engine_version="0.32.0+cpu",
        context=512,
        concurrency=4,
        device="cpu",
    )
    fields = {"generation": 1, "placements": (RankPlacement(node="this"),), "candidate": candidate, **fields}
    return GroupLaunch(deployment="tiny", **fields)


def rank_spec(launch, rank, port, secret):
    return spec_of(FleetPaths(ROOT), launch, rank, Ports(http=port), secret)


async def not_barred():
    """For a group whose nodes are never drained."""
    return ""


async def not_wanted():
    """For a group that nothing but its owner stops."""
    return False


async def never(*_, **__):
    """Waits until it is cancelled."""
    await asyncio.Event().wait()


def stuck(monkeypatch, answer):
    """From now on no counter of the engine moves; `answer` is the outcome of a request for one token."""

    async def still(probe, engine, draft_tokens):
        return Load(running=1, waiting=0, figures=(7.0,))

    monkeypatch.setattr(engine_client, "read_load", still)
    monkeypatch.setattr(Probe, "one_token", answer)


class ActorLostError(Exception):
    """In place of Ray's error of a call of an actor that is gone."""


class FakeRankActor:
    """A rank's actor on another node, without Ray."""

    def __init__(self, rank):
        self._rank = rank
        self._lost = asyncio.Event()

    def __getattr__(self, name):
        return SimpleNamespace(remote=partial(self._call, name))

    async def kill(self):
        """Ends it: calls fail, and its rank runs on without a holder."""
        self._lost.set()
        await self._rank.release()

    async def _call(self, name, *args):
        if self._lost.is_set():
            raise ActorLostError
        calls = [asyncio.create_task(one) for one in (getattr(self._rank, name)(*args), self._lost.wait())]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await cancel(calls[1])
        if not calls[0].done():
            await cancel(calls[0])
            raise ActorLostError
        answer = calls[0].result()
        if name not in ("adopt", "start", "status", "wait") or answer is None:
            return answer
        return RankObservation(status=answer, log_path=self._rank.log_path).model_dump_json()


class World:
    """A runtime per node; the engine listens on the first."""

    def __init__(self, tmp_path):
        self.backoff = Backoff(tmp_path / "begun", Timeouts())
        self.paths = FleetPaths(tmp_path)
        self.runtimes = [FakeRuntime(), FakeRuntime()]
        self.runtime = self.runtimes[0]
        self.boot = "first"
        """Boot id of rank 0's node."""
        self.reports = []
        self.actors = []
        """Of the ranks on other nodes, of the newest group that has such."""

    def group(self, *, wanted=not_wanted, barred=not_barred, after="", remote=False, **fields):
        """A group. `remote`: its further ranks are held through actors."""
        asked, wanted = wanted, group_launch(**fields)
        ranks = [
            LocalRank(FleetPaths(ROOT), self.runtimes[rank], wanted, rank, SECRET)
            for rank in range(len(wanted.placements))
        ]
        if remote:
            self.actors = [FakeRankActor(rank) for rank in ranks[1:]]
            ranks[1:] = [RemoteRank(one._rank.node, one, ActorLostError) for one in self.actors]
        return Group(
            wanted,
            ranks,
            self.reports.append,
            self.backoff,
            wanted=asked,
            barred=barred,
            after=after,
            turns=MeasuringTurns(self.paths.run / "measuring"),
            end_note=EndNote(self.paths.root / "ended", "a", self.boot),
            token_secret=lambda: SECRET,
        )

    @property
    def phases(self):
        return list(dict.fromkeys(report.phase for report in self.reports))

    def rank_id(self, rank=0):
        return group_launch().rank_id(FleetPaths(ROOT).label, rank)


def quick_world(engine, monkeypatch, tmp_path):
    """A world whose engine listens on this port, and in which nothing is waited for longer than a moment."""
    monkeypatch.setattr(rank_module, "free_port", lambda host: engine)
    monkeypatch.setattr(serving_watch, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(serving_watch, "AGAIN_S", 0.01)
    monkeypatch.setattr(memory_watch, "MEMORY_S", 0.01)
    return World(tmp_path)


async def vanish(group):
    """As if the group's process had died: its leases are free, its ranks go on."""
    for rank in group._ranks.holders:
        await rank._rank.close()
    await group._client.close()
