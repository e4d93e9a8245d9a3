"""Checkpoints as they lie on disk: real safetensors headers before sparse, empty data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tiny_llama import LLAMA, Weights, llama_weights, safetensors


def write_safetensors(path: Path, header: Mapping[str, object], data_bytes: int) -> None:
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + data_bytes)


LlamaWeights = Callable[..., list[tuple[str, str, tuple[int, ...]]]]
Maker = Callable[..., Path]


@pytest.fixture
def llama() -> dict[str, object]:
    """A config that may be changed."""
    return dict(LLAMA)


@pytest.fixture(name="llama_weights")
def _llama_weights() -> LlamaWeights:
    return llama_weights


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Maker:
    """Write a checkpoint: its config, and its weights in one file or (a mapping) in several with an index."""

    def make(
        config: Mapping[str, object] | None = None,
        weights: Weights | Mapping[str, Weights] | None = None,
        name: str = "model",
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(LLAMA if config is None else config))
        if isinstance(weights, Mapping):
            _write_shards(directory, weights)
        elif weights is not None:
            write_safetensors(directory / "model.safetensors", *safetensors(weights))
        return directory

    return make


def _write_shards(directory: Path, shards: Mapping[str, Weights]) -> None:
    entries = {}
    for file, weights in shards.items():
        listed = list(weights)
        write_safetensors(directory / file, *safetensors(listed))
        entries |= {name: file for name, _, _ in listed}
    index = {"metadata": {"total_size": 0}, "weight_map": entries}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
