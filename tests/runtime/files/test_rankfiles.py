from __future__ import annotations

import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.runtime.files.rankfiles import RankFiles


@given(st.text(max_size=300))
def test_any_id_has_a_file_name(rank):
    name = RankFiles.of(Path("/run"), rank).name
    assert "/" not in name
    assert "\0" not in name
    assert len(f"/proc/self/fd/1234567/{name}.sock") <= 107


def test_ids_that_look_alike_have_files_of_their_own(tmp_path):
    names = {RankFiles.of(tmp_path, rank).name for rank in ("a/b", "a_b", "a b", "a" * 60, "a" * 61)}
    assert len(names) == 5


def test_a_lock_is_held_until_it_is_closed(tmp_path):
    files = RankFiles.of(tmp_path, "a/b")
    lock = files.try_lock()
    assert lock is not None
    assert files.try_lock() is None
    os.close(lock)
    again = files.try_lock()
    assert again is not None
    os.close(again)


def test_a_copy_of_a_lock_holds_it_too(tmp_path):
    files = RankFiles.of(tmp_path, "a/b")
    lock = files.try_lock()
    copy = os.dup(lock)
    os.close(lock)
    assert files.try_lock() is None
    os.close(copy)


def test_a_lock_that_was_removed_is_no_lock(tmp_path, monkeypatch):
    files = RankFiles.of(tmp_path, "a/b")
    lock = files.try_lock()
    files.remove()
    assert RankFiles.present(tmp_path) == []
    os.close(lock)

    opened = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: (opened(*a, **k), files.lock.unlink())[0])
    assert files.try_lock() is None


def test_an_end_after_now_is_not_one_of_the_last_seconds(tmp_path):
    """A clock that was set back an hour made every end of that hour a recent one."""
    files = RankFiles.of(tmp_path, "a/b")
    assert not files.ended_within(60)
    files.last.touch()
    assert files.ended_within(60)
    for jump_s in (3600, -3600):
        at = time.time() + jump_s
        os.utime(files.last, (at, at))
        assert not files.ended_within(60)
