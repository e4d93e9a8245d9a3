import errno
import os
from pathlib import Path

import pytest

from sparkfleet.controlplane.api.api_tokens import ApiTokens

OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def files(tmp_path):
    """Files of the present token and of the former ones, of which only the first exists."""
    present, former = tmp_path / "api.token", tmp_path / "api.token.former"
    present.write_text(OLD)
    return present, former


def test_only_the_token_as_a_bearer_is_accepted(files):
    tokens = ApiTokens.read(*files)
    assert tokens.admits(f"Bearer {OLD}")
    assert not any(map(tokens.admits, ("", "Bearer ", f"Basic {OLD}", OLD, f"Bearer {NEW}", "Bearer é")))


def test_former_tokens_are_accepted_as_long_as_their_file_is_there(files):
    present, former = files
    tokens = ApiTokens.read(present, former)
    former.write_text(OLD + "\n")
    present.write_text(NEW)
    assert tokens.admits(f"Bearer {OLD}")
    assert tokens.admits(f"Bearer {NEW}")
    former.unlink()
    assert not tokens.admits(f"Bearer {OLD}")


@pytest.mark.parametrize("content", ["", "\n", "x"])
def test_a_spoilt_file_admits_nobody_new(files, content):
    present, former = files
    tokens = ApiTokens.read(present, former)
    assert tokens.admits(f"Bearer {OLD}")
    present.write_text(content)
    former.write_text(content)
    assert tokens.admits(f"Bearer {OLD}")  # the last one that could be used
    assert not tokens.admits(f"Bearer {content.strip()}")


def test_a_missing_file_is_an_error_at_the_start(files):
    files[0].unlink()
    with pytest.raises(FileNotFoundError):
        ApiTokens.read(*files)


@pytest.mark.parametrize("content", ["", "\n", "x", "A" * 64, OLD[:63], OLD + "0", "é"])
def test_a_file_without_a_token_opens_nothing_at_the_start(files, content):
    """With an empty file the word "Bearer" was enough."""
    files[0].write_text(content)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        ApiTokens.read(*files)


def test_a_token_that_somebody_put_back_with_an_editor_is_taken(files):
    files[0].write_text(f"{OLD}\n")
    assert ApiTokens.read(*files).admits(f"Bearer {OLD}")


def test_files_that_cannot_be_read_for_a_moment_are_read_at_the_next_request(files, monkeypatch):
    """Without a free descriptor, or before its owner was put right, the new token was refused for good."""
    present, former = files
    tokens = ApiTokens.read(present, former)
    assert tokens.admits(f"Bearer {OLD}")
    former.write_text(OLD)
    present.write_text(NEW)

    def refuse(path):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        assert not tokens.admits(f"Bearer {NEW}")
        assert tokens.admits(f"Bearer {OLD}")
    assert tokens.admits(f"Bearer {NEW}")
    assert tokens.admits(f"Bearer {OLD}")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        former.write_text(OLD + "\n")
        assert tokens.admits(f"Bearer {OLD}"), "a former token stays until its file is read or gone"


def test_a_token_of_the_same_inode_and_time_that_becomes_readable_is_read(files):
    """`chown` changes neither."""
    present, former = files
    tokens = ApiTokens.read(present, former)
    assert tokens.admits(f"Bearer {OLD}")
    at = present.stat().st_mtime_ns
    present.write_text(NEW)
    os.utime(present, ns=(at, at))
    assert tokens.admits(f"Bearer {NEW}")
