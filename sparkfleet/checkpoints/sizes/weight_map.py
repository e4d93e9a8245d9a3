"""Derives the sizes of a checkpoint's parts from the tensors in its headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkfleet.checkpoints.arch.layers import LayerGroup
from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames, Portion, layer_of
from sparkfleet.checkpoints.io.checkpoint_files import CONTAINER, OLD_QUANTIZATION
from sparkfleet.checkpoints.io.safe_io import present, shown
from sparkfleet.checkpoints.io.safetensors_header import Tensor
from sparkfleet.checkpoints.quantization.formats import Quantization, Scheme
from sparkfleet.errors import FactError

SERVICE_SUFFIXES = (
    "scales",
    "qzeros",
    "g_idx",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
    "output_scale",
    "activation_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "prob_scale",
    "pre_quant_scale",
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    "SCB",
    "weight_format",
    "scale",
    "inv_freq",
    "suh",
    "svh",
    "mcg",
    "mul1",
)
"""Last word of tensors that have no parameters, but serve to unpack or compute them."""

STATEFUL = re.compile(r"\b(conv\w*|A_log|dt_proj|time_mix|recurrent)\b", re.ASCII)
"""Tensors of a layer with a state, which attention does not have."""

_EXPERT_NUMBER = re.compile(r"(?<=\.experts\.)\d+")

_SERVICE = frozenset(SERVICE_SUFFIXES)

PLAIN_FORMATS = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F64": "fp64",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "F8_E4M3FNUZ": "fp8",
    "F8_E5M2FNUZ": "fp8",
    "I8": "int8",
}


@dataclass(slots=True)
class WeightMap:
    """Tensors found in the headers."""

    sizes: Counter[tuple[Part, str, str]] = field(default_factory=Counter)
    parameters: Counter[tuple[Part, str, str]] = field(default_factory=Counter)
    layers: set[int | None] = field(default_factory=set)
    mtp_layers: set[str] = field(default_factory=set)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """Sizes by part and storage, in a fixed order."""
        return tuple(
            Portion(
                part=part, dtype=dtype, format=name, parameters=self.parameters[part, dtype, name], bytes=size
            )
            for (part, dtype, name), size in sorted(self.sizes.items())
        )

    def has(self, part: Part) -> bool:
        """True if any tensor belongs to `part`."""
        return any(key[0] is part for key in self.sizes)


def map_weights(
    tensors: Iterable[Tensor], names: PartNames, quantization: Quantization | None, where: str
) -> WeightMap:
    """Sums tensors by part.

    Raises:
        FactError: weights are packed, and their bits are not declared.
    """
    found = WeightMap()
    for tensor, count in _alike(tensors).items():
        part = names.part(tensor.name)
        meaning = _meaning(tensor, part, quantization)
        if meaning is None:
            raise _unexplained(tensor, where)
        name, parameters = meaning
        key = (part, tensor.dtype, name)
        found.sizes[key] += count * tensor.stored_bytes
        found.parameters[key] += count * parameters
        if part is Part.MTP:
            found.mtp_layers.add(_mtp_layer(tensor.name))
        elif part is not Part.VISION:
            found.layers.add(layer_of(tensor.name))
    return found


def _alike(tensors: Iterable[Tensor]) -> Counter[Tensor]:
    """Counts equal experts of a layer together: a model with 400,000 tensors has a few thousand different ones."""
    return Counter(
        Tensor(_EXPERT_NUMBER.sub("0", name, count=1) if ".experts." in name else name, dtype, (), size)
        for name, dtype, _, size in tensors
    )


def check_complete(
    found: WeightMap, layers: Sequence[LayerGroup], with_parts: Collection[int], experts: int, where: str
) -> None:
    """Checks that every decoder layer has tensors, and every part that the config declares has one with a known name.

    Args:
        found: the tensors.
        layers: as the config describes them.
        with_parts: numbers of those that have weights (in Nemotron-NAS some have none).
        experts: routed ones of a layer.
        where: names the checkpoint in messages.

    Raises:
        FactError: weights are missing.
    """
    missing = [layer for layer in sorted(with_parts) if layer not in found.layers]
    # Draft heads and a few old models do not number their layers in this way.
    if missing and found.layers - {None}:
        raise _incomplete(
            where, f"for {len(missing)} of {len(layers)} layers, the first is layer {missing[0]}"
        )
    if experts and not found.has(Part.EXPERTS):
        raise _incomplete(where, f"for its {experts} experts")
    if any(layer.state for layer in layers) and not found.has(Part.LINEAR_ATTENTION):
        raise _incomplete(where, "for its linear attention")


def _incomplete(where: str, what: str) -> FactError:
    return FactError(
        f"{where}: no weights {what}.",
        means="The checkpoint is incomplete, its config.json belongs to another one, or its tensor names are not known.",
        do="Download the checkpoint again.",
    )


def count_mtp(found: WeightMap, declared: int) -> int:
    """Number of MTP layers. Nemotron-H writes one as two numbered blocks, so the config's number is the upper bound."""
    if not found.mtp_layers:
        return 0
    # The tensors that join the layers of a head have no number.
    numbered = len(found.mtp_layers - {""}) or 1
    return min(declared or numbered, numbered)


def check_grouped_attention(
    tensors: Iterable[Tensor],
    names: PartNames,
    keys: Mapping[int | None, Collection[int]],
    layers: Sequence[LayerGroup],
    where: str,
) -> None:
    """Checks that the weights of an unknown architecture are those of plain grouped-query attention only.

    Args:
        tensors: all of them.
        names: assigns their parts.
        keys: rows of the key projections, by layer.
        layers: as the config describes them.
        where: names the config in messages.

    Raises:
        FactError: they are not, so its memory per token is not known.
    """
    strange = next((tensor for tensor in tensors if _keeps_state(tensor, names)), None)
    if strange is not None:
        raise _not_known(where, f"it has the tensor {shown(strange.name)}")
    for index, layer in enumerate(layers):
        if layer.kv_heads * layer.key_dim not in keys.get(index, ()):
            raise _not_known(
                where, f"layer {index} does not have {layer.kv_heads} KV heads of {layer.key_dim}"
            )


def _keeps_state(tensor: Tensor, names: PartNames) -> bool:
    part = names.part(tensor.name)
    return part is Part.LINEAR_ATTENTION or (
        part is not Part.VISION and STATEFUL.search(tensor.name) is not None
    )


def _not_known(where: str, why: str) -> FactError:
    return FactError(
        f"{where}: the architecture is not known, and {why}.",
        means="Of such an architecture only plain attention can be read, so its memory per token is not known.",
        do=f"{CONTAINER}, or choose another model.",
    )


def _meaning(tensor: Tensor, part: Part, quantization: Quantization | None) -> tuple[str, int] | None:
    """The format and the number of parameters of a tensor; None if it is packed and its bits are not declared."""
    last = tensor.name.rpartition(".")[2]
    if last in _SERVICE or last.endswith("_scales") or "quant_state" in tensor.name:
        return "scale", 0
    scheme = quantization.scheme_of(part) if quantization else None
    if not _is_packed(tensor, last, scheme):
        return PLAIN_FORMATS.get(tensor.dtype, tensor.dtype.lower()), tensor.elements
    if scheme is None:
        return None
    # A byte has two weights of 4 bits, whatever the scheme of the rest of the part is.
    bits = scheme.bits if tensor.dtype in ("I32", "U32") else 4
    if last == "trellis":
        return scheme.format, round(tensor.stored_bytes * 8 / scheme.stored_bits)
    return scheme.format, tensor.stored_bytes * 8 // bits


def _is_packed(tensor: Tensor, last: str, scheme: Scheme | None) -> bool:
    if last in ("qweight", "weight_packed", "trellis") or last.endswith("_blocks") or tensor.dtype == "F4":
        return True
    if last != "weight":
        return False
    # I8 is a plain INT8 weight, except that DeepSeek stores two FP4 weights in each.
    return tensor.dtype == "U8" or (tensor.dtype == "I8" and scheme is not None and scheme.bits == 4)


def _unexplained(tensor: Tensor, where: str) -> FactError:
    old = next((name for name in OLD_QUANTIZATION if present(Path(where) / name)), None)
    means = "config.json has no quantization_config, and there is no hf_quant_config.json."
    do = "Download the checkpoint again."
    if old is not None:
        method = "gptq" if old == OLD_QUANTIZATION[0] else "awq"
        means = f"config.json has no quantization_config; engines read {old} only with a flag for it."
        do = f'Copy what {old} has into config.json as `quantization_config`, with `"quant_method": "{method}"`.'
    return FactError(
        f"{where}: tensor {shown(tensor.name)} is packed, but the bits per weight are not declared.",
        means=means,
        do=do,
    )


def _mtp_layer(name: str) -> str:
    """Prefix that identifies an MTP layer: everything up to the first number in its name."""
    words = name.split(".")
    numbers = [index for index, word in enumerate(words) if word.isdigit()]
    return ".".join(words[: numbers[0] + 1]) if numbers else ""
