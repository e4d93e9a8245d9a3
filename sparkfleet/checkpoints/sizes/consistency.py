"""Finds contradictions between weights and config.json: a config of another checkpoint would give the wrong memory.

Sizes of weights come from the headers and are always right. The memory per token (KV heads, states) and the weights that
it reads (experts) come from the config, and are compared with the shapes of a few tensors that have one name in all
families. A checkpoint may have several models (a talker beside a thinker, an encoder before a decoder) and each packing of
weights has its own shapes, so it is enough that one tensor of a name, or one stack of layers, agrees.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkfleet.checkpoints.arch.layers import LayerGroup
from sparkfleet.checkpoints.arch.weight_parts import MTP_NAMES, Part, PartNames, layer_of
from sparkfleet.checkpoints.io.safetensors_header import Tensor
from sparkfleet.errors import FactError

KEYS = re.compile(r"\.(k_proj|kv_a_proj_with_mqa)\.(weight|weight_packed|weight_scale|scales|scale_packed)$")
"""Projections that compute the cached keys, or the latent, and their scales."""
ANY = -1
"""Output size of a projection whose packing does not show it."""
CONVOLUTION = ".conv1d.weight"
NORM = ".input_layernorm.weight"
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings|embed|wte|word_embeddings|tok_embeddings)\.weight$")
EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")
JOINS_A_HEAD = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head)\b")
"""Tensors of an MTP layer after the decoder's layers, which a decoder layer does not have."""

PLAIN = ("BF16", "F16", "F32")

Widths = dict[int | None, set[int]]


@dataclass(slots=True)
class Shapes:
    """Sizes of tensors, by decoder layer if they belong to one."""

    keys: Widths = field(default_factory=lambda: defaultdict(set))
    convolutions: Widths = field(default_factory=lambda: defaultdict(set))
    hidden: set[int] = field(default_factory=set)
    experts: dict[str, int] = field(default_factory=dict)
    """Number of experts by the name of the mixture."""
    stacks: dict[str, dict[int, bool]] = field(default_factory=lambda: defaultdict(dict))
    """By the prefix of the layer's number: layers from the config's last one on, with True if they are an
    MTP head's."""


def read_shapes(tensors: Iterable[Tensor], names: PartNames) -> Shapes:
    """Reads the sizes that the config has to agree with. Towers, heads and drafts have their own."""
    found = Shapes()
    for tensor in tensors:
        part = names.part(tensor.name)
        if part in (Part.VISION, Part.DRAFT, Part.OTHER):
            continue
        _stack(found, tensor.name, names.layers)
        if part is Part.EXPERTS:
            _experts(found, tensor)
        elif tensor.shape and part is not Part.MTP:
            _own(found, tensor)
    return found


def check_config(
    shapes: Shapes,
    layers: Sequence[LayerGroup],
    *,
    hidden: int,
    experts: int,
    mtp_layers: int,
    where: str,
) -> None:
    """Compares the config with the tensors.

    Args:
        shapes: of the tensors.
        layers: as the config describes them, one by one.
        hidden: the config's `hidden_size`.
        experts: routed ones of a layer.
        mtp_layers: as many as the config declares.
        where: names the config in messages.

    Raises:
        FactError: they contradict one another.
    """
    ends = [_strange(stack, len(layers), mtp_layers) for stack in shapes.stacks.values()]
    if ends and None not in ends:
        raise _contradiction(where, f"{len(layers)} layers", f"a layer {ends[0]}")
    if shapes.hidden and hidden not in shapes.hidden:
        raise _contradiction(where, f"a hidden size of {hidden}", f"one of {_all(shapes.hidden)}")
    held = set(shapes.experts.values())
    if experts and held and experts not in held:
        raise _contradiction(where, f"{experts} experts", _all(held))
    for index, layer in enumerate(layers):
        _check_layer(shapes, index, layer, where)


def _check_layer(shapes: Shapes, index: int, layer: LayerGroup, where: str) -> None:
    kept = layer.kv_heads * layer.key_dim
    if kept and _differs(shapes.keys, index, kept):
        declared = f"{layer.kv_heads} KV heads of {layer.key_dim} in layer {index}"
        raise _contradiction(where, declared, f"keys of {_all(shapes.keys[index])} in all")
    if layer.state is not None and _differs(shapes.convolutions, index, layer.state.conv_channels):
        declared = f"a convolution of {layer.state.conv_channels} channels in layer {index}"
        raise _contradiction(where, declared, f"one of {_all(shapes.convolutions[index])}")


def _differs(widths: Widths, index: int, expected: int) -> bool:
    return index in widths and widths[index].isdisjoint({expected, ANY})


def _strange(stack: Mapping[int, bool], layers: int, mtp_layers: int) -> int | None:
    """The first layer of a stack beyond `layers` decoder layers and `mtp_layers` layers of an MTP head."""
    beyond = {layer: is_head for layer, is_head in stack.items() if layer >= layers}
    strange = sorted(layer for layer, is_head in beyond.items() if not is_head)
    return strange[0] if strange and len(beyond) > mtp_layers else None


def _own(found: Shapes, tensor: Tensor) -> None:
    name, shape = tensor.name, tensor.shape
    if name.endswith(NORM) and len(shape) == 1:
        found.hidden.add(shape[0])
    elif name.endswith(CONVOLUTION):
        found.convolutions[layer_of(name)].add(shape[0])
    elif KEYS.search(name):
        found.keys[layer_of(name)] |= _outputs(name.rpartition(".")[2], shape)
    elif len(shape) == 2 and tensor.dtype in PLAIN and EMBEDDING.search(name):
        found.hidden.add(shape[1])


def _experts(found: Shapes, tensor: Tensor) -> None:
    """Counts experts: numbered ones, or all of a layer in one tensor."""
    number = EXPERT.search(tensor.name)
    mixture = tensor.name[: number.start()] if number else tensor.name
    count = int(number[1]) + 1 if number else tensor.shape[0] if len(tensor.shape) > 2 else 0
    if count:
        found.experts[mixture] = max(count, found.experts.get(mixture, 0))


def _outputs(last: str, shape: Sequence[int]) -> set[int]:
    """Output size of a projection, by the last word of a tensor's name and its shape."""
    if last == "scales":  # of GPTQ and AWQ: a column for each output; of AWQ for GEMV: a row
        return {shape[0], shape[-1]}
    if last == "weight_scale":  # ModelOpt packs outputs of INT4 in pairs, and has a row of scales for each
        return {shape[0]} if len(shape) == 2 else set()
    # bitsandbytes packs a matrix into one column; Marlin's 2:4 layout mixes inputs and outputs.
    return {ANY} if last == "scale_packed" or shape[-1] == 1 else {shape[0]}


def _stack(found: Shapes, name: str, layers: int) -> None:
    layer = layer_of(name)
    if layer is not None and layer >= layers - 1 and MTP_NAMES.isdisjoint(name.split(".")):
        stack = found.stacks[name.partition(f"layers.{layer}.")[0]]
        stack[layer] = stack.get(layer, False) or bool(JOINS_A_HEAD.search(name))


def _all(sizes: Collection[int]) -> str:
    return " or ".join(map(str, sorted(sizes)[:3]))


def _contradiction(where: str, declared: str, has: str) -> FactError:
    return FactError(
        f"{where}: declares {declared}, but the weights have {has}.",
        means="config.json belongs to another checkpoint, or was changed.",
        do="Download the checkpoint again.",
    )
