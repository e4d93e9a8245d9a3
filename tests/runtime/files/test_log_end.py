"""The end of a log, and of nothing else."""

import os

import pytest

from sparkfleet.runtime.files.log_end import log_end


@pytest.fixture
def logs(tmp_path):
    directory = tmp_path / "logs"
    directory.mkdir()
    (directory / "a.log").write_bytes(b"".join(b"line %03d\n" % number for number in range(100)))
    (tmp_path / "secret").write_text("secret")
    return directory


def test_the_last_whole_lines_within_the_limit(logs):
    assert log_end(logs, str(logs / "a.log"), 30) == b"line 097\nline 098\nline 099\n"
    assert len(log_end(logs, str(logs / "a.log"), 10_000)) == 900


def test_one_long_line_is_cut(logs):
    (logs / "b.log").write_bytes(b"x" * 100)
    assert log_end(logs, str(logs / "b.log"), 30) == b"x" * 30


def test_a_log_that_was_rotated_has_the_end_of_its_older_file_as_well(logs):
    (logs / "a.log").rename(logs / "a.log.1")
    (logs / "a.log").write_bytes(b"new\n")
    assert log_end(logs, str(logs / "a.log"), 24) == b"line 098\nline 099\nnew\n"
    assert log_end(logs, str(logs / "a.log"), 10) == b"new\n"


def test_an_older_file_that_is_a_link_is_not_read(logs):
    (logs / "a.log.1").symlink_to(logs.parent / "secret")
    assert len(log_end(logs, str(logs / "a.log"), 10_000)) == 900


OTHERS = (
    "/etc/passwd", "{logs}/../secret", "{logs}", "{logs}/", "{logs}/none.log", "{logs}/link", "{logs}/pipe", "a.log", "",
)  # fmt: skip


@pytest.mark.parametrize("path", OTHERS)
def test_nothing_else_is_read(logs, path):
    (logs / "link").symlink_to(logs.parent / "secret")
    os.mkfifo(logs / "pipe")
    assert log_end(logs, path.format(logs=logs), 100) is None
