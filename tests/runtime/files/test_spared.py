"""A directory that programs which remove old files leave alone."""

import fcntl
import os

import pytest
from tmpfiles import is_cleaned

from sparkfleet.runtime.files.spared import spared


def test_it_is_left_alone_until_the_last_holder_has_gone(tmp_path):
    with spared(tmp_path):
        with spared(tmp_path):
            assert not is_cleaned(tmp_path)
        assert not is_cleaned(tmp_path)
    assert is_cleaned(tmp_path)


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
    assert is_cleaned(tmp_path)
