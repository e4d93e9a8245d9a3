"""A directory that programs which remove old files leave alone."""

import fcntl
import os

import pytest

from sparkfleet.runtime.files.spared import spared


def cleaned(directory):
    """True if systemd-tmpfiles would clean it: it takes an exclusive lock first."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def test_it_is_left_alone_until_the_last_holder_has_gone(tmp_path):
    with spared(tmp_path):
        with spared(tmp_path):
            assert not cleaned(tmp_path)
        assert not cleaned(tmp_path)
    assert cleaned(tmp_path)


def test_a_directory_that_is_gone_or_being_cleaned_stops_nobody(tmp_path):
    with spared(tmp_path / "gone"):
        pass
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with spared(tmp_path):
        pass
    os.close(descriptor)
    with pytest.raises(RuntimeError), spared(tmp_path):
        raise RuntimeError
    assert cleaned(tmp_path)
