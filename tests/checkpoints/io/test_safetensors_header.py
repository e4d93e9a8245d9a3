from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.checkpoints.io.safetensors_header import BITS, HEADER_LIMIT, Tensor, read_header
from sparkfleet.errors import FactError

TENSOR = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def write(path: Path, header: object, data: int = 0, *, length: int | None = None) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write((len(content) if length is None else length).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + data)
    return path


def outcome(path: Path) -> list[Tensor] | FactError:
    """Tensors, or the complaint; any other exception is the test's failure."""
    try:
        return read_header(path)
    except FactError as error:
        return error


def test_reads_names_dtypes_shapes_and_sizes_in_the_order_of_storage(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "second": {"dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [12, 28]},
        "first": TENSOR,
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [28, 32]},
        "empty": {"dtype": "F32", "shape": [0, 7], "data_offsets": [32, 32]},
    }
    tensors = read_header(write(tmp_path / "a", header, 32))
    assert tensors == [
        Tensor("first", "BF16", (2, 3), 12),
        Tensor("second", "F8_E4M3", (4, 4), 16),
        Tensor("scalar", "F32", (), 4),
        Tensor("empty", "F32", (0, 7), 0),
    ]
    assert [tensor.elements for tensor in tensors] == [6, 16, 1, 0]


@pytest.mark.parametrize(("dtype", "bits"), BITS.items())
def test_knows_the_size_of_every_dtype(tmp_path: Path, dtype: str, bits: int) -> None:
    header = {"x": {"dtype": dtype, "shape": [8, 2], "data_offsets": [0, bits * 2]}}
    assert read_header(write(tmp_path / "a", header, bits * 2))[0].elements == 16


def test_accepts_padding_after_the_json(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "a", json.dumps({"x": TENSOR}).encode() + b"   ", 12))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dtype": "Q4_K"}, "unknown dtype 'Q4_K'"),
        ({"dtype": None}, "unknown dtype None"),
        ({"dtype": ["BF16"]}, "unknown dtype"),
        ({"shape": [2, -3]}, "has -3 in its shape"),
        ({"shape": [2, 3.0]}, "has 3.0 in its shape"),
        ({"shape": [True, 6]}, "has True in its shape"),
        ({"shape": [1 << 70, 0]}, "has 'a number of 71 bits' in its shape"),
        ({"shape": [1] * 65}, "has the shape"),
        ({"shape": "23"}, "has the shape"),
        ({"data_offsets": [12, 0]}, "has the offsets 12 and 0"),
        ({"data_offsets": [-12, 0]}, "has the offsets -12 and 0"),
        ({"data_offsets": [0, 13]}, "has the offsets 0 and 13 for 96 bits"),
        ({"data_offsets": [0]}, "has the offsets"),
        ({"data_offsets": [0, 12, 24]}, "has the offsets"),
        ({"data_offsets": [0, None]}, "has the offsets 0 and None"),
        ({"data_offsets": {"0": 12}}, "has the offsets"),
        ({"dtype": "F4", "shape": [3]}, "for 12 bits"),
    ],
)
def test_refuses_an_entry_that_contradicts_the_format(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(FactError) as caught:
        read_header(write(tmp_path / "a", {"x": {**TENSOR, **change}}, 12))
    assert complaint in caught.value.what
    assert caught.value.means
    assert caught.value.do


@pytest.mark.parametrize("entry", [None, [], "BF16", 3, True])
def test_refuses_an_entry_that_is_not_an_object(tmp_path: Path, entry: object) -> None:
    with pytest.raises(FactError, match="is not an object"):
        read_header(write(tmp_path / "a", {"x": entry}))


@pytest.mark.parametrize(
    ("second", "data", "complaint"),
    [
        ([6, 18], 18, "'y' overlaps the one before it"),
        ([0, 12], 12, "'y' overlaps the one before it"),
        ([24, 36], 36, "'y' leaves a gap after the one before it"),
        ([12, 24], 23, "declares 24 bytes of tensors, the file has 23"),
        ([12, 24], 25, "declares 24 bytes of tensors, the file has 25"),
    ],
)
def test_ranges_fill_the_file_exactly(tmp_path: Path, second: list[int], data: int, complaint: str) -> None:
    header = {"x": TENSOR, "y": {**TENSOR, "data_offsets": second}}
    with pytest.raises(FactError) as caught:
        read_header(write(tmp_path / "a", header, data))
    assert complaint in caught.value.what


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0 bytes"),
        (b"\x01\x02\x03", "3 bytes"),
        ((10).to_bytes(8, "little") + b"{}", "declares a header of 10 bytes in a file of 10"),
        ((HEADER_LIMIT + 1).to_bytes(8, "little"), "at most 25000000 are read"),
        (b"\xff" * 16, "at most 25000000 are read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a pointer of Git LFS"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
        ((4).to_bytes(8, "little") + b"{'a'", "is not JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "is not JSON"),
        (b"GGUF\x03\x00\x00\x00" + b"\0" * 64, "declares a header"),
    ],
)
def test_refuses_a_file_that_is_not_safetensors(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(FactError) as caught:
        read_header(path)
    assert complaint in caught.value.what


def test_refuses_json_nested_beyond_reason(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="is not JSON: 'RecursionError'"):
        read_header(write(tmp_path / "a", b'{"x":' + b"[" * 100_000))


def test_refuses_a_number_too_long_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="is not JSON: 'ValueError'"):
        read_header(write(tmp_path / "a", b'{"x":' + b"9" * 10_000 + b"}"))


def test_a_header_at_the_limit_in_a_short_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="truncated"):
        read_header(write(tmp_path / "a", b"{}", length=HEADER_LIMIT))


def test_refuses_devices_pipes_and_directories_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(FactError, match="is not a regular file"):
            read_header(path)
    with pytest.raises(FactError, match="No such file"):
        read_header(tmp_path / "missing")


# Hypothesis reuses the directory: every example overwrites the same file.
SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@SAME_FILE
@given(
    content=st.binary(max_size=200),
    start=st.sampled_from([b"", (2).to_bytes(8, "little"), (40).to_bytes(8, "little")]),
)
def test_random_bytes_never_raise_anything_else(tmp_path: Path, content: bytes, start: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(start + content)
    found = outcome(path)
    assert isinstance(found, FactError) or (found == [] and (start + content)[8:].strip() == b"{}")


@SAME_FILE
@given(
    header=st.dictionaries(
        st.text(max_size=8),
        JSON | st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON}),
        min_size=1,
        max_size=4,
    ),
    data=st.integers(0, 64),
)
def test_any_json_gives_tensors_or_a_clear_error(
    tmp_path: Path, header: dict[str, object], data: int
) -> None:
    path = write(tmp_path / "a", header, data)
    found = outcome(path)
    if isinstance(found, FactError):
        assert found.what.isprintable()
        assert found.means
    else:
        assert sum(tensor.stored_bytes for tensor in found) == data


@SAME_FILE
@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    mutation=st.sampled_from(["none", "swap", "shift", "grow", "drop", "cut"]),
    where=st.integers(0, 100),
)
def test_every_mutation_of_a_good_header_is_noticed(
    tmp_path: Path, sizes: list[int], mutation: str, where: int
) -> None:
    header: dict[str, object] = {}
    position = 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {
            "dtype": "I16",
            "shape": [size],
            "data_offsets": [position, position + 2 * size],
        }
        position += 2 * size
    chosen = where % len(sizes)
    begin, size = 2 * sum(sizes[:chosen]), sizes[chosen]
    entry = {"dtype": "I16", "shape": [size], "data_offsets": [begin, begin + 2 * size]}
    changed = {
        "swap": {**entry, "data_offsets": [begin + 2 * size, begin]},
        "shift": {**entry, "data_offsets": [begin + 2, begin + 2 + 2 * size]},
        "grow": {**entry, "shape": [size, 3]},
        "drop": {"dtype": "I16", "shape": [size]},
    }.get(mutation, entry)
    path = write(
        tmp_path / "a", {**header, f"t{chosen}": changed}, position + (1 if mutation == "cut" else 0)
    )
    if mutation == "none":
        assert len(read_header(path)) == len(sizes)
    else:
        with pytest.raises(FactError):
            read_header(path)
