"""Cleaning of directories as systemd-tmpfiles does it."""

import fcntl
import os


def is_cleaned(directory):
    """True if systemd-tmpfiles would clean the directory: it takes an exclusive lock first."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
