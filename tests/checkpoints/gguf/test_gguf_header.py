"""Headers of files and shards: sizes that fit, shards that belong together, and any bytes as a FactError at most."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import F32, Q4_K, gguf, header, llama_gguf, llama_keys, llama_shards, llama_tensors

from sparkfleet.checkpoints.gguf.gguf_header import read_gguf, read_shards
from sparkfleet.errors import FactError


@pytest.fixture
def write(tmp_path):
    def to_file(content: bytes, name: str = "a-Q4_K_M.gguf"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return to_file


def refused(*paths) -> str:
    with pytest.raises(FactError) as error:
        read_shards(paths)
    assert str(paths[0].parent) in error.value.what
    return error.value.what


def test_sizes_of_tensors(write):
    found = read_gguf(write(llama_gguf()))
    by_name = {tensor.name: tensor for tensor in found.tensors}
    assert by_name["blk.0.attn_q.weight"].stored_bytes == 256 * 256 // 256 * 144
    assert by_name["blk.0.attn_q.weight"].elements == 65536
    assert found.architecture == "llama"
    assert found.own.integer("block_count") == 2
    assert found.count("tokenizer.ggml.tokens") == 600
    assert found.file_bytes == len(llama_gguf())


def test_a_truncated_file_is_refused_with_its_bytes(write):
    whole = llama_gguf()
    assert f"has {len(whole) - 1000} bytes of the" in refused(write(whole[:-1000]))


def test_a_file_whose_last_padding_is_missing_is_whole(write):
    """Some writers do not pad the last tensor."""
    tensors = [("a", F32, (8,)), ("b", F32, (1,))]
    whole = gguf({"general.architecture": "llama"}, tensors)
    assert len(read_gguf(write(whole[:-28])).tensors) == 2


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({"general.alignment": 3}, [], "alignment 3"),
        ({}, [("a", F32, ())], "impossible shape"),
        ({}, [("a", Q4_K, (255, 2))], "impossible shape for Q4_K"),
    ],
)
def test_what_cannot_be_loaded_is_refused(write, metadata, tensors, words):
    assert words in refused(write(header(metadata, tensors) + bytes(1000)))


def test_an_unknown_type_is_refused_with_its_number(write):
    content = bytearray(header({}, [("a", F32, (256,))]))
    content[-12:-8] = (137).to_bytes(4, "little")  # a type of another fork
    assert "type 137, which llama.cpp b11434 does not have" in refused(write(bytes(content) + bytes(2000)))


def test_gaps_between_tensors_are_refused(write):
    content = bytearray(header({}, [("a", F32, (8,)), ("b", F32, (8,))]))
    content[-8:] = (4096).to_bytes(8, "little")
    assert "at byte 4096 of its data, not 32" in refused(write(bytes(content) + bytes(9000)))


def test_shards_are_one_model(write):
    paths = [write(content, f"a-0000{n}-of-00002.gguf") for n, content in enumerate(llama_shards(), start=1)]
    found = read_shards(paths)
    assert [tensor.name for tensor in found.tensors] == [name for name, _, _ in llama_tensors()]
    assert found.architecture == "llama"
    assert found.file_bytes == sum(map(len, llama_shards()))


def test_shards_of_other_models_are_refused(write):
    two, three = llama_shards(2), llama_shards(3)
    assert "is shard 1 of 2 by its header, and 1 of 1 by its name" in refused(write(two[0], "a.gguf"))
    assert "is shard 2 of 3" in refused(write(two[0], "a.gguf"), write(three[1], "b.gguf"))
    other = gguf({"split.no": 1, "split.count": 2}, [("x", F32, (8,))])
    assert f"declares {len(llama_tensors())} tensors" in refused(
        write(two[0], "a.gguf"), write(other, "b.gguf")
    )


def test_no_file_and_no_regular_file(tmp_path):
    assert "cannot be read" in refused(tmp_path / "missing.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert "not a regular file" in refused(tmp_path / "folder.gguf")


WHOLE = llama_gguf()
HEADER = header(llama_keys(), llama_tensors())


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=500),
        st.tuples(st.integers(0, len(HEADER) - 1), st.binary(min_size=1, max_size=9)).map(
            lambda change: WHOLE[: change[0]] + change[1] + WHOLE[change[0] + len(change[1]) :]
        ),
    )
)
def test_any_bytes_are_read_or_a_fact_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    path.write_bytes(content)
    with suppress(FactError):
        assert read_shards([path]).file_bytes == len(content)
