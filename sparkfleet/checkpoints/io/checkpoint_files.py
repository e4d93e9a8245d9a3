"""Files of a checkpoint's directory: its config, and the safetensors files of its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkfleet.checkpoints.io.config_json import Config
from sparkfleet.checkpoints.io.safe_io import present, read_json_object, shown, size_of
from sparkfleet.checkpoints.io.safetensors_header import Tensor, read_header
from sparkfleet.errors import FactError

CONFIG_BYTES = 32 << 20
"""Limit, bytes. ModelOpt lists every layer by name: 3 MB for MiniMax-M3."""
INDEX_BYTES = 256 << 20
"""Limit, bytes. The index has one line per tensor: 40 MB for Kimi-K2 in NVFP4."""
MOST_SHARDS = 10_000

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

PIPELINE = "model_index.json"
"""Describes a pipeline of diffusers."""
ADAPTER = "adapter_config.json"
"""Describes an adapter (LoRA), with the name of the model that it changes."""
OLD_QUANTIZATION = ("quantize_config.json", "quant_config.json")
"""Files in which AutoGPTQ and AutoAWQ wrote what `quantization_config` has since."""

CONTAINER = (
    "Deploy its server as a container with `engine: custom` and its `memory` (deployments/orpheus-tts.yaml is an"
    " example)"
)
"""The way to serve what cannot be planned."""
_SAFE = "Give a checkpoint in safetensors format"
_PICKLED = "PyTorch files can run code when they are opened, so sparkfleet does not open them."
OTHER_WEIGHTS: Mapping[str, tuple[str, str]] = {
    "*.bin": (_PICKLED, f"{_SAFE}."),
    "*.pt": (_PICKLED, f"{_SAFE}."),
    "*.pth": (_PICKLED, f"{_SAFE}."),
    "adapter_*.safetensors": (
        "An adapter alone is not a model.",
        f"{_SAFE}, into which the adapter was merged.",
    ),
}
"""Weights that are not read, by their names: what that means, and what to do."""


def read_config(directory: Path) -> Config:
    """Reads `config.json`. Raises FactError if it is missing or unusable."""
    path = directory / "config.json"
    if os.path.isdir(directory) and not present(path):
        if present(directory / PIPELINE):
            raise refused_pipeline(str(directory), f"its file {PIPELINE}")
        _refuse_other_weights(directory)
        raise FactError(
            f"{directory}: has no config.json.",
            means="It is not a checkpoint in the format of Hugging Face transformers.",
            do="Give the directory that holds config.json.",
        )
    return Config(read_json_object(path, CONFIG_BYTES), str(path))


def read_beside(directory: Path, name: str) -> Config | None:
    """Reads another JSON file of the directory; None if there is none."""
    path = directory / name
    return Config(read_json_object(path, CONFIG_BYTES), str(path)) if present(path) else None


class WeightFiles(NamedTuple):
    """The tensors of all weight files, and the files' sizes."""

    tensors: list[Tensor]
    size: int
    """Bytes of all files."""
    largest: int
    """Bytes of the largest one."""


def read_tensors(directory: Path) -> WeightFiles | None:
    """Reads the tensors of all weight files; None if there are no weights.

    Raises:
        FactError: a file is missing, damaged or outside the directory, or a tensor is missing or occurs twice.
    """
    index = directory / INDEX
    if present(index):
        return _indexed(directory, index)
    paths = _unindexed(directory)
    if not paths:
        _refuse_other_weights(directory)
        return None
    return _read(paths)


def _indexed(directory: Path, index: Path) -> WeightFiles:
    entries = read_json_object(index, INDEX_BYTES).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise FactError(
            f"{index}: has no weight_map.", means="The file is damaged.", do="Download the checkpoint again."
        )
    found = _read(_shards(directory, index, entries))
    missing = entries.keys() - {tensor.name for tensor in found.tensors}
    if missing:
        raise FactError(
            f"{index}: {len(missing)} of its tensors are in no file, one is {shown(min(missing))}.",
            means="The checkpoint is incomplete.",
            do="Download the checkpoint again.",
        )
    return found


def _shards(directory: Path, index: Path, entries: Mapping[str, object]) -> list[Path]:
    if set(map(type, entries.values())) != {str}:
        raise FactError(
            f"{index}: the values of weight_map are not file names.", do="Download the checkpoint again."
        )
    shards = sorted(map(str, set(entries.values())))
    if len(shards) > MOST_SHARDS:
        raise FactError(f"{index}: lists {len(shards)} files, too many.", do="Do not use this checkpoint.")
    for name in shards:
        if not name or Path(name).name != name or name == ".." or not name.isprintable():
            raise FactError(
                f"{index}: lists the file {shown(name)}, which is not a file of its own directory.",
                means="The index is damaged or hostile; nothing outside the directory is read.",
                do="Do not use this checkpoint.",
            )
    absent = [name for name in shards if not present(directory / name)]
    if absent:
        raise FactError(
            f"{directory}: {len(absent)} of {len(shards)} weight files are missing, the first is {absent[0]}.",
            means="The checkpoint is incomplete.",
            do="Let the download finish, or start it again.",
        )
    return [directory / name for name in shards]


def _unindexed(directory: Path) -> list[Path]:
    """Weight files that are loaded without an index: `model.safetensors`, or every file that is not a copy or an adapter."""
    if present(directory / SINGLE):
        return [directory / SINGLE]
    found = sorted(directory.glob("*.safetensors"))[:MOST_SHARDS]
    return [path for path in found if not path.name.startswith(("adapter_", "consolidated"))]


def _read(paths: Iterable[Path]) -> WeightFiles:
    tensors: list[Tensor] = []
    sizes: list[int] = []
    for path in paths:
        tensors += read_header(path)
        sizes.append(size_of(path))
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise FactError(
            f"{next(iter(paths)).parent}: a tensor is in two files.",
            means="Files of different checkpoints are mixed.",
            do="Download the checkpoint again into an empty directory.",
        )
    return WeightFiles(tensors, sum(sizes), max(sizes, default=0))


def refused_pipeline(where: str, by: str) -> FactError:
    """The error for a diffusion model: `by` is what shows it."""
    return FactError(
        f"{where}: cannot be planned, by {by}.",
        means="It makes images, video or sound. Plans, their speeds and the test of a group before it serves are for text.",
        do=f"{CONTAINER}.",
    )


def _refuse_other_weights(directory: Path) -> None:
    _refuse_adapter(directory)
    for pattern, (means, do) in OTHER_WEIGHTS.items():
        found = next(iter(sorted(directory.glob(pattern))), None)
        if found is not None:
            raise FactError(f"{found}: this format is not supported.", means=means, do=do)


def _refuse_adapter(directory: Path) -> None:
    path = directory / ADAPTER
    if not present(path):
        return
    adapter = Config(read_json_object(path, CONFIG_BYTES), str(path))
    base = adapter.values.get("base_model_name_or_path")
    # Often a path of the machine that trained it.
    named = shown(base) if isinstance(base, str) and base else "its base model, which it does not name"
    raise FactError(
        f"{directory}: is an adapter ({ADAPTER}), not a model.",
        means=f"It changes the weights of {named}.",
        do="Merge it into that model (`merge_and_unload` and `save_pretrained` of peft), and give the directory of the"
        " result.",
    )
