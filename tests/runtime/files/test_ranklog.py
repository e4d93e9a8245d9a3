from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.runtime.files.ranklog import NOT_OURS, OURS, RankLog, SecretMask

SECRET = "abcabcabd"


def contents(path):
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}


def test_files_rotate_and_the_oldest_goes(tmp_path):
    log = RankLog(str(tmp_path / "log"), file_bytes=10, files=3)
    for line in (b"1" * 8, b"2" * 8, b"3" * 2, b"4" * 8, b"5" * 30):
        log.write(line)
    log.close()
    assert contents(tmp_path) == {"log": b"5" * 30, "log.1": b"4" * 8, "log.2": b"2" * 8 + b"3" * 2}


def test_a_log_is_continued(tmp_path):
    for text in (b"first ", b"second"):
        log = RankLog(str(tmp_path / "log"), file_bytes=100)
        log.write(text)
        log.close()
    assert contents(tmp_path) == {"log": b"first second"}
    log = RankLog(str(tmp_path / "log"), file_bytes=14)
    log.write(b"third")
    log.close()
    assert contents(tmp_path) == {"log": b"third", "log.1": b"first second"}


def test_it_is_private(tmp_path):
    log = RankLog(str(tmp_path / "new" / "log"))
    log.write(b"x")
    log.close()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "log").stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    log = RankLog(str(tmp_path / "log"))
    log.write(b"x")
    log.close()
    assert not (tmp_path / "precious").exists()


def test_a_log_that_cannot_be_written_loses_lines_only(tmp_path):
    (tmp_path / "d").mkdir()
    log = RankLog(str(tmp_path / "d" / "log"), file_bytes=4)
    log.write(b"1234")
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "d").write_text("in the way")
    log.write(b"lost")
    assert log.tail() == "1234lost"
    os.unlink(tmp_path / "d")
    log.write(b"kept")
    log.close()
    assert contents(tmp_path / "d") == {"log": b"kept"}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Sets the size of the disk of `tmp_path`, bytes."""
    write, size = os.write, [1 << 20]

    def limited(descriptor, chunk):
        if sum(file.stat().st_size for file in tmp_path.iterdir()) + len(chunk) > size[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, chunk)

    monkeypatch.setattr(os, "write", limited)
    return lambda new: size.__setitem__(0, new)


def test_on_a_full_disk_the_newest_lines_take_the_place_of_the_oldest(tmp_path, disk):
    log = RankLog(str(tmp_path / "log"), file_bytes=8, files=3)
    for line in (b"1" * 8, b"2" * 8, b"3" * 6):
        log.write(line)
    disk(22)
    log.write(b"4")
    assert contents(tmp_path) == {"log": b"3" * 6 + b"4", "log.1": b"2" * 8}
    disk(15)
    log.write(b"5" * 8)
    assert contents(tmp_path)["log"] == b"5" * 8
    disk(8)
    log.write(b"6" * 8)
    log.close()
    assert contents(tmp_path)["log"] == b"6" * 8


def test_on_a_full_disk_lines_of_an_earlier_start_are_not_left_as_those_of_this_one(tmp_path, disk):
    earlier = RankLog(str(tmp_path / "log"))
    earlier.write(b"Address already in use\n")
    earlier.close()
    disk(len(b"Address already in use\n"))
    log = RankLog(str(tmp_path / "log"))
    log.write(b"another error\n")
    disk(0)
    log.write(b"lost\n")
    assert contents(tmp_path) == {"log": b""}
    disk(100)
    log.write(b"the end\n")
    log.close()
    assert contents(tmp_path) == {"log": b"the end\n"}


def test_the_tail_is_the_last_lines_of_the_engine(tmp_path):
    log = RankLog(str(tmp_path / "log"))
    log.note("running: engine")
    log.write("".join(f"line {i}\n" for i in range(9999)).encode())
    log.note("the engine failed")
    assert log.tail(2) == "line 9997\nline 9998"
    assert len(log.tail().splitlines()) == 50
    log.close()
    assert b"[sparkfleet] the engine failed\n" in contents(tmp_path)["log"]


def test_the_tail_is_fit_for_a_terminal(tmp_path):
    log = RankLog(str(tmp_path / "log"))
    log.write(b"\x1b[31mred\x1b[0m\x07\tx\r\n 10%\r 20%\r100%\n" + b"y" * 9999 + b"\n\xff\x9b\n\n")
    red, progress, long, raw = log.tail().split("\n")
    assert (red, progress, len(long), raw) == ("red\tx", "100%", 500, "\ufffd\ufffd")
    log.close()


def test_secrets_are_masked_in_what_the_supervisor_says(tmp_path):
    log = RankLog(str(tmp_path / "log"), secrets=[SECRET])
    log.note(f"running: engine --key {SECRET}")
    log.close()
    assert contents(tmp_path) == {"log": b"[sparkfleet] running: engine --key ***\n"}


def test_secrets_are_masked_in_files_and_tail(tmp_path):
    log = RankLog(str(tmp_path / "log"), secrets=[SECRET, "short"])
    for part in (b"key=abcab", b"cabd, short ", b"abcabc"):
        log.write(part)
    log.close()
    assert contents(tmp_path) == {"log": b"key=***, short abcabc"}
    assert log.tail() == "key=***, short abcabc"


def test_each_line_of_a_secret_is_masked_behind_the_words_of_a_logger(tmp_path):
    key = "-----BEGIN KEY-----\n  MIIabcdefghijkl\n}\n"
    log = RankLog(str(tmp_path / "log"), secrets=[key])
    log.write(b"ERROR -----BEGIN KEY-----\nERROR   MIIabcdefghijkl\nERROR }\n" + repr(key).encode())
    log.close()
    assert contents(tmp_path) == {"log": b"ERROR ***\nERROR   ***\nERROR }\n'***\\n  ***\\n}\\n'"}


@given(words=st.lists(st.sampled_from([SECRET, "a", "b", "c", "abc", "abcabca", "d ", "\n"])), data=st.data())
def test_no_way_of_cutting_lets_a_secret_through(words, data):
    text = "".join(words).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    mask = SecretMask([SECRET])
    bounds = [0, *cuts, len(text)]
    out = b"".join(mask.feed(text[a:b]) for a, b in itertools.pairwise(bounds)) + mask.flush()
    assert SECRET.encode() not in out
    assert out == text.replace(SECRET.encode(), b"***")


@given(chunks=st.lists(st.binary(max_size=20)))
def test_a_log_without_secrets_is_untouched(chunks):
    mask = SecretMask([])
    assert [mask.feed(chunk) for chunk in chunks] == chunks
    assert mask.flush() == b""


FAKE = b"[sparkfleet] 2026-11-20 18:00:00 running: engine\n"


@given(data=st.data())
def test_output_never_looks_like_a_line_of_the_supervisor_however_it_is_cut(data):
    text = b"a\n" + FAKE + b"\r" + FAKE + b"[spark" + FAKE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    mask = SecretMask([SECRET], also={OURS: NOT_OURS})
    bounds = [0, *cuts, len(text)]
    out = b"".join(mask.feed(text[a:b]) for a, b in itertools.pairwise(bounds)) + mask.flush()
    assert OURS not in out
    assert out == text.replace(OURS, NOT_OURS)


def test_a_line_of_the_supervisor_begins_a_line_and_is_one(tmp_path):
    for begun in (b"half a line", b"of a supervisor that was killed"):
        log = RankLog(str(tmp_path / "log"))
        log.write(begun)
        if begun == b"half a line":
            log.note("running: sh -c 'a\nb'")
    log = RankLog(str(tmp_path / "log"))
    log.note("running: again")
    assert contents(tmp_path)["log"].decode().splitlines() == [
        "half a line",
        "[sparkfleet] running: sh -c 'a\\nb'",
        "of a supervisor that was killed",
        "[sparkfleet] running: again",
    ]


def test_a_rotation_in_the_middle_of_a_line(tmp_path):
    log = RankLog(str(tmp_path / "log"), file_bytes=12, files=2)
    log.write(b"123456789")
    log.write(b"0123")
    log.note("x")
    log.close()
    assert contents(tmp_path) == {"log": b"\n[sparkfleet] x\n", "log.1": b"0123"}


def test_a_log_that_somebody_removes_is_made_again(tmp_path):
    """It went on into a file that nobody could read, and that held its place on the disk."""
    log = RankLog(str(tmp_path / "log"))
    log.write(b"one\n")
    (tmp_path / "log").unlink()
    log.write(b"two\n")
    log.note("three")
    log.close()
    assert contents(tmp_path) == {"log": b"two\n" + OURS + b" three\n"}
