"""The sign of a move of the head, and the lock of its steps."""

import asyncio
import contextlib

import pytest

from sparkfleet.controlplane.state.head_address import HeadMove
from sparkfleet.controlplane.store_safety.guard import StoreError
from sparkfleet.controlplane.store_safety.moving import (
    KEPT_TOKENS,
    alone_moving,
    begin_move,
    give_head,
    read_move,
    release_head,
    require_here,
    require_no_other_move,
    require_under_way,
    void_moves,
)
from sparkfleet.errors import ControlError
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    made = FleetPaths(tmp_path / "home")
    made.root.mkdir()
    return made


def move(number, to="b"):
    return HeadMove(to=to, token=f"t{number}")


def test_a_move_that_was_undone_is_remembered_and_holds_nobody(paths):
    assert (read_move(paths.root), void_moves(paths.root)) == (None, frozenset())
    for number in (1, 2):
        begin_move(paths, move(number))
        give_head(paths)
        with pytest.raises(StoreError, match="being moved to b"):
            require_here(paths.root)
        release_head(paths)
    require_here(paths.root)
    assert not paths.head_move.exists(), "an earlier release would take any mark for a move that is under way"
    assert void_moves(paths.root) == {"t1", "t2"}
    begin_move(paths, move(3))
    assert void_moves(paths.root) == {"t1", "t2"}, "this one may still take over"
    release_head(paths, certain=False)
    assert (read_move(paths.root), void_moves(paths.root)) == (None, {"t1", "t2"})


def test_a_record_of_undone_moves_that_cannot_be_read_has_none_and_is_written_again(paths):
    paths.undone_moves.write_text("garbage")
    assert void_moves(paths.root) == frozenset()
    begin_move(paths, move(1))
    release_head(paths)
    assert void_moves(paths.root) == {"t1"}


def test_a_move_that_another_one_replaces_never_takes_over(paths):
    for number in range(KEPT_TOKENS + 5):
        begin_move(paths, move(number))
    assert void_moves(paths.root) == {f"t{number}" for number in range(4, KEPT_TOKENS + 4)}


def test_another_move_is_named_with_the_command_that_ends_it(paths):
    require_no_other_move(paths.root, move(1))
    with pytest.raises(ControlError, match="has ended on a node"):
        require_under_way(paths.root, move(1))
    begin_move(paths, move(1))
    require_under_way(paths.root, move(1))
    require_no_other_move(paths.root, move(2))
    for check, other in ((require_under_way, move(2)), (require_no_other_move, move(2, "c"))):
        with pytest.raises(ControlError, match="Another move of the head, to b, is under way") as refused:
            check(paths.root, other)
        assert "`sparkfleet move-head --cancel b`" in refused.value.do


def test_one_that_cannot_be_read_is_a_move_to_somewhere(paths):
    paths.head_move.write_text("garbage")
    with pytest.raises(ControlError, match="Another move of the head is under way") as refused:
        require_no_other_move(paths.root, move(1))
    assert "`sparkfleet move-head --cancel b`" in refused.value.do
    release_head(paths)
    assert (read_move(paths.root), void_moves(paths.root)) == (None, frozenset())


async def test_steps_on_one_node_wait_for_each_other(paths):
    order = []

    async def second():
        async with alone_moving(paths):
            order.append("second")

    async with alone_moving(paths):
        waiting = asyncio.create_task(second())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.2)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


async def test_a_node_without_the_directory_has_nothing_to_lock(tmp_path):
    async with alone_moving(FleetPaths(tmp_path / "none")):
        assert not (tmp_path / "none").exists()
