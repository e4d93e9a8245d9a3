"""Directories that are incomplete, damaged or hostile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.errors import FactError

Weight = tuple[str, str, tuple[int, ...]]
Maker = Callable[..., Path]
LlamaWeights = Callable[..., list[Weight]]
Config = dict[str, object]

INDEX = "model.safetensors.index.json"


def shards(weights: list[Weight]) -> dict[str, list[Weight]]:
    return {"one.safetensors": weights[::2], "two.safetensors": weights[1::2]}


def refused(directory: Path) -> FactError:
    with pytest.raises(FactError) as caught:
        read_checkpoint(directory)
    assert caught.value.what
    assert caught.value.do or caught.value.means
    return caught.value


def outcome(directory: Path) -> str:
    """Facts as JSON, or what is wrong; anything else than a FactError is the test's failure."""
    try:
        return read_checkpoint(directory).model_dump_json()
    except FactError as error:
        return error.what


def test_a_missing_directory(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere").what


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in refused(tmp_path).what


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("pytorch_model.bin", "run code"),
        ("adapter_model.safetensors", "adapter"),
    ],
)
@pytest.mark.parametrize("with_config", [True, False])
def test_weights_in_another_format(
    tmp_path: Path, llama: Config, name: str, means: str, with_config: bool
) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps(llama))
    error = refused(tmp_path)
    assert name in error.what
    assert means in error.means


@pytest.mark.parametrize(
    ("base", "named"),
    [("meta-llama/Llama-3.1-8B", "'meta-llama/Llama-3.1-8B'"), (None, "does not name"), (7, "does not name")],
)
def test_an_adapter_is_named_with_its_model(tmp_path: Path, base: object, named: str) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    error = refused(tmp_path)
    assert "is an adapter" in error.what
    assert named in str(error.means)


def test_a_pipeline_of_diffusers(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    error = refused(tmp_path)
    assert "cannot be planned, by its file model_index.json" in error.what
    assert "`engine: custom`" in error.do


def test_a_missing_shard(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    (directory / "two.safetensors").unlink()
    assert "1 of 2 weight files are missing, the first is two.safetensors" in refused(directory).what
    (directory / "one.safetensors").unlink()
    assert "2 of 2 weight files are missing" in refused(directory).what


def test_a_shard_that_was_cut_short(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    path = directory / "two.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    assert "two.safetensors: its header declares" in refused(directory).what


def test_a_tensor_that_the_index_names_and_no_file_has(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["model.layers.0.self_attn.q_norm.weight"] = "one.safetensors"
    (directory / INDEX).write_text(json.dumps(index))
    assert (
        "1 of its tensors are in no file, one is 'model.layers.0.self_attn.q_norm.weight'"
        in refused(directory).what
    )


def test_a_tensor_in_two_files(make_checkpoint: Maker, llama_weights: LlamaWeights) -> None:
    weights = llama_weights()
    directory = make_checkpoint(weights={"one.safetensors": weights, "two.safetensors": weights[:1]})
    assert "a tensor is in two files" in refused(directory).what


def test_missing_layers(make_checkpoint: Maker, llama: Config, llama_weights: LlamaWeights) -> None:
    directory = make_checkpoint({**llama, "num_hidden_layers": 5}, llama_weights(layers=3))
    assert "no weights for 2 of 5 layers, the first is layer 3" in refused(directory).what


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "sub/one.safetensors",
        "..",
        ".",
        "",
        "one\n.safetensors",
        "a\0b",
    ],
)
def test_an_index_that_names_files_elsewhere(
    make_checkpoint: Maker, llama_weights: LlamaWeights, tmp_path: Path, name: str
) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    (directory / "one.safetensors").rename(tmp_path / "secret.safetensors")
    index = (directory / INDEX).read_text().replace("one.safetensors", json.dumps(name)[1:-1])
    (directory / INDEX).write_text(index)
    error = refused(directory)
    assert "is not a file of its own directory" in error.what
    assert error.what.isprintable()


def test_a_shard_with_a_name_that_no_file_can_have(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    index = (directory / INDEX).read_text().replace("one.safetensors", "x" * 300)
    (directory / INDEX).write_text(index)
    assert "File name too long" in refused(directory).what


def test_a_directory_that_may_not_be_entered(
    make_checkpoint: Maker, llama_weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_checkpoint(weights=llama_weights())

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    assert "config.json: cannot be read: Permission denied" in refused(directory).what


@pytest.mark.parametrize(
    "entries", [None, {}, [], "one.safetensors", {"x": 3}, {"x": None}, {"x": ["one.safetensors"]}, {"x": {}}]
)
def test_an_invalid_index(make_checkpoint: Maker, llama_weights: LlamaWeights, entries: object) -> None:
    directory = make_checkpoint(weights=llama_weights())
    (directory / INDEX).write_text(json.dumps({"weight_map": entries}))
    assert "weight_map" in refused(directory).what


@pytest.mark.parametrize(
    "name", ["config.json", INDEX, "model.safetensors", "hf_quant_config.json", "README.md"]
)
def test_a_device_or_a_pipe_in_place_of_a_file(
    make_checkpoint: Maker, llama_weights: LlamaWeights, name: str
) -> None:
    directory = make_checkpoint(weights=llama_weights())
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to("/dev/zero")
    assert f"{name}: is not a regular file" in refused(directory).what
    (directory / name).unlink()
    os.mkfifo(directory / name)
    assert f"{name}: is not a regular file" in refused(directory).what


def test_a_config_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(8 << 30)
    assert "at most" in refused(tmp_path).what


def test_links_into_a_cache_are_followed(
    make_checkpoint: Maker, llama_weights: LlamaWeights, tmp_path: Path
) -> None:
    directory = make_checkpoint(weights=llama_weights())
    (directory / "model.safetensors").rename(tmp_path / "blob")
    (directory / "model.safetensors").symlink_to("../blob")
    assert read_checkpoint(directory).weights_known


def test_without_an_index_every_file_but_copies_and_adapters_counts(
    make_checkpoint: Maker, llama_weights: LlamaWeights
) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()))
    whole = read_checkpoint(directory).bytes_on_disk
    (directory / INDEX).unlink()
    for copy in ("consolidated.safetensors", "adapter_model.safetensors"):
        (directory / copy).write_bytes((directory / "one.safetensors").read_bytes())
    assert read_checkpoint(directory).bytes_on_disk == whole


NUMBERS = count()
NAMES = [
    "config.json",
    INDEX,
    "one.safetensors",
    "hf_quant_config.json",
    "generation_config.json",
    "README.md",
    "LICENSE",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(name=st.sampled_from(NAMES), content=st.binary(max_size=80), keep=st.floats(0, 1))
def test_damage_anywhere_gives_facts_or_a_clear_error(
    make_checkpoint: Maker,
    llama_weights: LlamaWeights,
    name: str,
    content: bytes,
    keep: float,
) -> None:
    directory = make_checkpoint(weights=shards(llama_weights()), name=f"damaged-{next(NUMBERS)}")
    path = directory / name
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(before[: int(len(before) * keep)] + content)
    assert outcome(directory)
