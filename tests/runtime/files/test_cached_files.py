"""Files whose pages are given back, on the real kernel."""

import ctypes
import mmap
import os
import subprocess

import pytest

from sparkfleet.runtime.files.cached_files import LEAST_BYTES, give_back

SIZE = 8 * LEAST_BYTES


def cached(path):
    """Bytes of a file in the page cache, by mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        address, size = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped))
        code = ctypes.CDLL(None, use_errno=True).mincore(address, size, pages)
        del first  # the mapping cannot be closed while it is held
    assert code == 0, os.strerror(ctypes.get_errno())
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


@pytest.fixture
def blob(tmp_path):
    """A shard that was just written, and so is in memory and not yet on the disk."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("a file system in memory has no page cache to give back")
    path = tmp_path / "models--org--m" / "blobs" / "abc"
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(SIZE))
    return path


def test_the_pages_of_a_large_file_are_given_back_and_its_content_stays(blob, tmp_path):
    before = blob.read_bytes()
    assert cached(blob) == SIZE
    assert give_back(tmp_path) == 1
    assert cached(blob) == 0
    assert blob.read_bytes() == before


def test_a_file_that_an_engine_has_mapped_stays(blob, tmp_path):
    with blob.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) > 0
        give_back(tmp_path)
        assert cached(blob) >= SIZE // 2


def test_small_files_links_and_those_that_are_gone_are_left(blob, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(blob)
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert give_back(tmp_path, tmp_path / "not-there") == 1
