import os
import time
from pathlib import Path

import pytest

from sparkfleet.runtime.files import kv_pruner
from sparkfleet.runtime.files.kv_pruner import PAUSE_S, KvPruner, remove_gone, used_bytes

KB = 1 << 10


@pytest.fixture(autouse=True)
def roomy_disk(monkeypatch):
    """A disk with a terabyte free, whatever this machine has."""
    monkeypatch.setattr(kv_pruner, "_space", lambda root: (1 << 40, 0))


@pytest.fixture
def key(tmp_path):
    return tmp_path / "kv" / "chat" / "0123"


@pytest.fixture
def pruner(key):
    """A pruner with a limit of 100 KB, begun."""
    one = KvPruner(str(key), 100 * KB)
    one.begin()
    yield one
    one.end()


def block(key, name, size=8 * KB, age_s=0.0, ending=".bin"):
    """A file as vLLM names it, last written so long ago."""
    path = key / "model_abc_r0" / name[:3] / f"{name[3:5]}_g0" / f"{name}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def names(key):
    return {path.stem for path in key.rglob("*.bin")}


def test_within_the_limit_nothing_is_removed(pruner, key):
    for number in range(10):
        block(key, f"{number}00aa", age_s=1e6)
    done = pruner.run()
    assert (done.removed, len(names(key))) == (0, 10)
    assert done.used == sum(path.stat().st_blocks * 512 for path in key.rglob("*.bin"))


def test_beyond_it_the_oldest_go_until_a_tenth_is_free(pruner, key):
    for number in range(20):
        block(key, f"{number:02}0aa", age_s=1000 * (20 - number))
    done = pruner.run()
    assert names(key) == {f"{number:02}0aa" for number in range(9, 20)}
    assert done.used == 11 * 8 * KB <= 90 * KB
    assert not (key / "model_abc_r0" / "000" / "aa_g0").exists(), "empty directories go with their last file"


def test_a_file_that_was_read_counts_as_used(pruner, key):
    for number in range(20):
        path = block(key, f"{number:02}0aa", age_s=1000 * (20 - number))
        if number == 3:
            os.utime(path, (time.time(), path.stat().st_mtime))  # as a read sets it
    pruner.run()
    assert "030aa" in names(key)
    assert "090aa" not in names(key)


def test_a_second_read_is_seen_again_with_relatime(pruner, key):
    """relatime moves the access time only if it is not later than that of the last change."""
    path = block(key, "000aa", age_s=5000)
    read = time.time() - 60
    os.utime(path, (read, path.stat().st_mtime))
    pruner.run()
    found = path.stat()
    assert found.st_mtime == found.st_atime == pytest.approx(read, abs=1e-3)


def test_reads_on_this_file_system_are_seen_one_after_the_other(pruner, key):
    """Real ones: each would be seen once a day without the pass between them."""
    path = block(key, "000aa", age_s=5000)
    written = path.stat().st_atime
    path.read_bytes()
    first = path.stat().st_atime
    if first == written:
        pytest.skip("a file system without access times")
    pruner.run()
    time.sleep(0.02)  # the clock of files is coarse
    path.read_bytes()
    assert path.stat().st_atime > first


def test_a_disk_that_is_nearly_full_has_precedence_over_the_limit(pruner, key, monkeypatch):
    for number in range(5):
        block(key, f"{number}00aa", age_s=1000 - number)
    monkeypatch.setattr(kv_pruner, "_space", lambda root: (100 * KB, 110 * KB))
    done = pruner.run()
    assert done.removed == 16 * KB
    assert names(key) == {"200aa", "300aa", "400aa"}


def test_the_next_pass_comes_before_the_room_is_used_up(pruner, key, monkeypatch):
    assert pruner.run().pause_s == PAUSE_S[0]
    large = KvPruner(str(key), 1 << 40)
    assert large.run().pause_s == PAUSE_S[1]
    monkeypatch.setattr(kv_pruner, "_space", lambda root: (20 * 10**9, 10 * 10**9))
    assert large.run().pause_s == pytest.approx(20.0)


def test_partial_files_of_an_engine_that_was_killed_are_removed(pruner, key):
    old = block(key, "000aa", ending=".bin_1.tmp", age_s=3600)
    new = block(key, "000bb", ending=".bin_2.tmp")
    pruner.run()
    assert not old.exists()
    assert new.exists()


def test_the_engines_own_files_stay(pruner, key):
    config = key / "model_abc" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes(os.urandom(500 * KB))
    pruner.run()
    assert config.exists()


def test_what_other_settings_left_goes_unless_an_engine_uses_it(pruner, key):
    former, used = key.parent / "former", key.parent / "used"
    other = KvPruner(str(used), KB)
    other.begin()
    former.mkdir()
    block(former, "000aa")
    pruner.run()
    assert (former.exists(), used.exists(), key.exists()) == (False, True, True)
    other.end()
    pruner.run()
    assert not used.exists()


def test_two_engines_share_a_directory(pruner, key):
    """Two replicas on a node, or a group and the one that replaces it: the end of one is not the end of the files."""
    second = KvPruner(str(key), 100 * KB)
    second.begin()
    block(key, "000aa")
    second.end()
    newer = KvPruner(str(key.parent / "newer"), 100 * KB)
    newer.begin()
    newer.run()
    newer.end()
    assert names(key) == {"000aa"}
    assert pruner.run().used == 8 * KB


def test_the_directory_is_private(key, pruner):
    assert [path.stat().st_mode & 0o777 for path in (key, key.parent, key.parent.parent)] == [0o700] * 3


def test_a_file_that_goes_meanwhile_is_no_error(pruner, key, monkeypatch):
    for number in range(20):
        block(key, f"{number:02}0aa", age_s=1000 * (20 - number))
    unlink = os.unlink

    def late(path):
        unlink(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", late)
    assert pruner.run().removed == 0


def test_links_are_not_followed(pruner, key, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    kept = block(precious, "000aa", size=500 * KB)
    (key / "link").symlink_to(precious)
    (key / "file.bin").symlink_to(kept)
    pruner.run()
    assert kept.exists()


def test_deployments_that_are_gone_lose_theirs(tmp_path):
    kv = tmp_path / "kv"
    one, other, ends = (KvPruner(str(kv / name / "k"), KB) for name in ("one", "other", "ends"))
    for pruner in (one, other, ends):
        pruner.begin()
    one.end()
    other.end()
    block(kv / "one" / "k", "000aa")
    assert remove_gone(kv, frozenset({"other"})) == (kv / "one",)
    assert {path.name for path in kv.iterdir()} == {"other", "ends"}, (
        "what an engine uses stays until it ends"
    )
    ends.end()
    assert remove_gone(kv, frozenset({"other"})) == (kv / "ends",)
    assert remove_gone(tmp_path / "none", frozenset()) == ()


def test_a_directory_in_whose_place_a_file_is_cannot_be_made(tmp_path):
    (tmp_path / "kv").touch()
    with pytest.raises(OSError, match="kv"):
        KvPruner(str(tmp_path / "kv" / "chat" / "k"), KB).begin()


def test_the_disk_of_a_directory_is_read(tmp_path, monkeypatch):
    monkeypatch.undo()
    free, floor = kv_pruner._space(Path(tmp_path))
    disk = os.statvfs(tmp_path)
    assert 0 < free <= disk.f_blocks * disk.f_frsize
    assert floor == max(10 << 30, disk.f_blocks * disk.f_frsize // 16)


def test_the_kv_of_all_fleets_is_counted(tmp_path):
    for fleet in ("home", "lab"):
        block(tmp_path / fleet / "kv" / "chat" / "key", "000aa")
    (tmp_path / "none").mkdir()
    (tmp_path / "file").touch()
    assert used_bytes(tmp_path) == 2 * 8 * KB
    assert used_bytes(tmp_path / "missing") == 0
