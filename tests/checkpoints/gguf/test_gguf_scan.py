"""The walk through a header: what it keeps, and that no content does harm."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import header, llama_keys, llama_tensors, text

from sparkfleet.checkpoints.gguf import gguf_scan
from sparkfleet.checkpoints.gguf.gguf_scan import DamagedHeader, Elements, HeaderScan, ScannedHeader

WHOLE = header(llama_keys(), llama_tensors())


def scan(content: bytes, limit: int = 1 << 20) -> ScannedHeader:
    return HeaderScan(io.BytesIO(content).read, limit).run()


def start(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def test_keys_and_tensors_in_their_order():
    found = scan(WHOLE + b"weights")
    assert (found.version, found.length) == (3, len(WHOLE))
    assert found.metadata["llama.block_count"] == 2
    assert found.metadata["general.sampling.temp"] == 0.75
    assert [tensor.name for tensor in found.tensors[:2]] == ["token_embd.weight", "output_norm.weight"]
    assert found.tensors[0].shape == (256, 600)


def test_of_long_arrays_only_the_length_is_kept():
    found = scan(header({"short": [1, 2], "texts": ["a"] * 257, "numbers": [7] * 4097}, []))
    assert found.metadata == {"short": [1, 2], "texts": Elements(257), "numbers": Elements(4097)}


def test_version_2_is_read_alike():
    assert scan(header(llama_keys(), llama_tensors(), version=2)).version == 2


def test_reading_ends_with_the_header(monkeypatch):
    monkeypatch.setattr(gguf_scan, "FIRST_READ", 64)
    file = io.BytesIO(WHOLE + b"w" * 10_000_000)
    walk = HeaderScan(file.read)
    assert walk.run().length == len(WHOLE)
    assert len(walk.buffer) < 2 * len(WHOLE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends inside"),
        (b"PK\x03\x04" + bytes(20), "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (start(version=1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (start(tensors=1 << 40), "tensors"),
        (start(keys=1 << 40), "keys"),
        (start(keys=1) + struct.pack("<Q", 1 << 60), "a text of"),
        (start(keys=1) + text("k") + struct.pack("<I", 99), "unknown type 99"),
        (start(keys=1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 50), "elements in an array"),
        (start(keys=1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "array of the unknown type 9"),
        (start(keys=2) + 2 * (text("k") + struct.pack("<IB", 0, 1)), "a key twice"),
        (start(tensors=1) + text("t") + struct.pack("<I", 5), "dimensions"),
        (start(keys=1) + text("k") + struct.pack("<IIQ", 9, 0, 3_000_000), "more than 1 MiB"),
    ],
)
def test_what_contradicts_the_format_is_refused(content, words):
    with pytest.raises(DamagedHeader, match=words):
        scan(content)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.binary(max_size=300).map(lambda rest: start(2, 3) + rest)))
def test_any_bytes_are_a_header_or_damaged(content):
    with suppress(DamagedHeader):
        assert isinstance(scan(content), ScannedHeader)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_one_changed_byte_does_no_harm(at, byte):
    changed = bytearray(WHOLE)
    changed[at] = byte
    with suppress(DamagedHeader):
        assert scan(bytes(changed)).length <= len(WHOLE)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_header_is_damaged(length):
    with pytest.raises(DamagedHeader):
        scan(WHOLE[:length])
