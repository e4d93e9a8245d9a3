from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from node_fixtures import ended, herald

from sparkfleet.runtime.base import RankId, RankSpec
from sparkfleet.runtime.process_runtime import ProcessRank, ProcessRuntime

__all__ = ["ended", "herald"]

Running = Callable[[RankSpec], Awaitable[ProcessRank]]
MakeSpec = Callable[..., RankSpec]


@pytest.fixture
def rank_id() -> RankId:
    return RankId(fleet="home", deployment="qwen", generation=1, replica=0, rank=0)


@pytest.fixture
def make_spec(rank_id: RankId, tmp_path: Path) -> MakeSpec:
    """A spec for an engine; fields as keywords. The lease is longer than any test, the grace short."""

    def make(argv: tuple[str, ...], **fields: object) -> RankSpec:
        known = {
            "id": rank_id,
            "digest": " ".join(argv),
            "log_path": str(tmp_path / "logs" / "rank.log"),
            "port": 20_000,
            "grace_s": 0.1,
        }
        return RankSpec.model_validate({**known, "argv": argv, **fields})

    return make


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessRuntime]:
    """A runtime of a fleet of its own, swept when the test is over."""
    monkeypatch.setattr("sparkfleet.runtime.process_runtime._STRAY_GRACE_S", 0.1)
    runtime = ProcessRuntime(tmp_path / "run", fleet=f"test {tmp_path}", tools=())
    yield runtime
    await runtime.sweep(frozenset())


@pytest.fixture
async def running(runtime: ProcessRuntime) -> AsyncIterator[Running]:
    """Starts ranks and owns them until the test is over."""
    async with AsyncExitStack() as stack:

        async def start(spec: RankSpec) -> ProcessRank:
            await runtime.start(spec)
            rank = await runtime.own(spec.id)
            assert rank
            stack.push_async_callback(rank.close)
            return rank

        yield start
