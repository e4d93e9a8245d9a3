"""A rank of this node, of which only the supervisor is fake."""

import asyncio

import pytest
from fake_runtime import FakeRank, FakeRuntime
from rank_world import World

from sparkfleet.errors import NodeError
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.runtime.files.token_secrets import TokenSecrets


async def test_an_engine_is_adopted_by_a_former_secret_of_its_token(tmp_path):
    """A change of the fleet's secrets is no reason to start it again; its holder knows which token it has."""
    world = World(tmp_path)
    old, new, unknown = "s" * 64, "n" * 64, "u" * 64
    await world.take()
    for holder in world.holders:
        await holder.release()

    def anew(tokens):
        world.holders = [
            LocalRank(world.paths, runtime, world.launch, rank, old, tokens=tokens)
            for rank, runtime in enumerate(world.runtimes)
        ]
        return world.anew()

    _, adopted = await world.take(anew(TokenSecrets(current=new, former=(old,))))
    assert adopted
    assert {holder.token_secret for holder in world.holders} == {old}
    for holder in world.holders:
        await holder.release()
    _, adopted = await world.take(anew(TokenSecrets(current=new, former=(unknown,))))
    assert not adopted
    assert {holder.token_secret for holder in world.holders} == {new}


async def test_before_a_rank_is_started_the_page_cache_of_its_node_is_dropped(tmp_path, dropped):
    """On a GPU with unified memory: what the cache holds, the driver cannot have."""
    world = World(tmp_path, nodes=("this", "that"))
    await world.take()
    assert sorted(dropped) == ["that", "this"]
    for holder in world.holders:
        await holder._rank.close()
    assert (await world.take(world.anew()))[1], "adopted"
    assert len(dropped) == 2, "what is adopted has its memory"


async def test_what_the_last_process_of_the_group_still_holds_for_a_moment_is_adopted(tmp_path):
    """Ray ends the actor of a rank on another node a moment after the group's own: to load again would take minutes."""
    world = World(tmp_path)
    await world.take()
    held = world.holders[0]._rank
    world.holders = [LocalRank(world.paths, world.runtimes[0], world.launch, 0, "s" * 64)]
    taking = asyncio.create_task(world.take(world.anew()))
    await asyncio.sleep(0.05)
    assert not taking.done()
    await held.close()
    assert (await taking)[1], "adopted"
    assert len(world.runtimes[0].started) == 1


class StoppedRuntime(FakeRuntime):
    """A runtime whose supervisors are stopped (SIGSTOP) for so many questions."""

    silent = 0

    async def own(self, id_):
        if self.silent:
            self.silent -= 1
            raise NodeError(f"the supervisor of {id_} did not answer within 5 s")
        return await super().own(id_)


async def test_a_rank_whose_supervisor_is_stopped_for_a_while_is_adopted(tmp_path, monkeypatch):
    """Each attempt counted as a failed start: after three the ladder took over, beside an engine that served."""
    monkeypatch.setattr(rank_module, "STOPPED_LOOK_S", 0.01)
    world = World(tmp_path)
    world.runtimes[0] = StoppedRuntime()
    world.holders = [LocalRank(world.paths, world.runtimes[0], world.launch, 0, "s" * 64)]
    await world.take(world.anew())
    await world.holders[0].release()
    world.runtimes[0].silent = 5
    world.holders = [LocalRank(world.paths, world.runtimes[0], world.launch, 0, "s" * 64)]
    _, adopted = await world.take(world.anew())
    assert adopted
    assert len(world.runtimes[0].started) == 1
    assert world.runtimes[0].stopped == []


class LateRuntime(StoppedRuntime):
    """Its supervisor was stopped: it then answers calls whose callers have gone, and forgets them."""

    late = 0

    async def own(self, id_):
        if self.late:
            self.late -= 1
            return None  # held for the caller who has gone
        return await super().own(id_)


async def test_a_rank_that_is_held_for_a_caller_who_has_gone_is_adopted(tmp_path, monkeypatch):
    """The wait for a holder was over when the supervisor answered, and it was not looked for one who had just gone: the rank
    was taken for one that does not run, and one over two nodes was stopped."""
    monkeypatch.setattr(rank_module, "STOPPED_LOOK_S", 0.3)
    monkeypatch.setattr(rank_module, "OWNED_S", 0.25)
    world = World(tmp_path)
    world.runtimes[0] = LateRuntime()
    world.holders = [LocalRank(world.paths, world.runtimes[0], world.launch, 0, "s" * 64)]
    await world.take(world.anew())
    await world.holders[0].release()
    world.runtimes[0].silent, world.runtimes[0].late = 1, 1
    world.holders = [LocalRank(world.paths, world.runtimes[0], world.launch, 0, "s" * 64)]
    _, adopted = await world.take(world.anew())
    assert adopted
    assert len(world.runtimes[0].started) == 1
    assert world.runtimes[0].stopped == []


async def test_a_rank_whose_supervisor_is_stopped_while_it_starts_is_held_later(tmp_path, monkeypatch):
    """The start failed, and the engine ran on beside the next one until its lease was over."""
    monkeypatch.setattr(rank_module, "STOPPED_LOOK_S", 0.01)
    world = World(tmp_path)
    runtime = world.runtimes[0] = StoppedRuntime()
    holder = LocalRank(world.paths, runtime, world.launch, 0, "s" * 64)
    runtime.silent = 2
    await holder.start(5000)
    await holder.stop()
    assert [spec.id for spec in runtime.started] == runtime.stopped


class DeafRank(FakeRank):
    """Its supervisor answers no status and no stop."""

    async def status(self):
        raise NodeError("the supervisor did not answer within 5 s")

    async def stop(self):
        raise NodeError("the supervisor does not end")


class DeafRuntime(FakeRuntime):
    deaf = False

    async def own(self, id_):
        found = await super().own(id_)
        if found is not None and self.deaf:
            found.__class__ = DeafRank
        return found


@pytest.mark.parametrize("call", ["adopt", "stop"])
async def test_a_rank_that_cannot_be_adopted_or_stopped_is_not_held_on(tmp_path, call):
    """Held by an object that nobody has, its lease would not run out as long as this process lives."""
    world = World(tmp_path)
    runtime = world.runtimes[0] = DeafRuntime()
    holder = LocalRank(world.paths, runtime, world.launch, 0, "s" * 64)
    runtime.deaf = call == "stop"
    await holder.start(5000)
    if call == "adopt":
        await holder.release()
        runtime.deaf = True
    with pytest.raises(NodeError):
        await getattr(holder, call)()
    (left,) = await runtime.list()
    assert not left.owned
    runtime.expire(left.id)
    assert await runtime.list() == ()


async def test_a_supervisor_that_never_answers_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_module, "STOPPED_LOOK_S", 0.01)
    monkeypatch.setattr(rank_module, "STOPPED_S", 0.05)
    world = World(tmp_path)
    runtime = StoppedRuntime()
    runtime.silent = 10**6
    with pytest.raises(NodeError, match="did not answer"):
        await LocalRank(world.paths, runtime, world.launch, 0, "s" * 64).adopt()


async def test_a_log_of_an_earlier_start_says_nothing_of_this_one(tmp_path):
    path = tmp_path / "rank.log"
    path.write_text(
        "[sparkfleet] 2026-11-20 18:00:00,123 running: vllm serve x\nApplication startup complete.\n"
        "[sparkfleet] 2026-11-20 18:01:00,123 stopped: by its owner's request\n"
        "[sparkfleet] 2026-11-20 18:02:00,123 preparing: build\nbuilt\n"
        "[sparkfleet] 2026-11-20 18:02:01,123 running: vllm serve x\nfirst line\n"
    )
    assert rank_module._tail(path) == "first line\n"
    path.write_text("an engine's own line\n")
    assert rank_module._tail(path) == "an engine's own line\n"
