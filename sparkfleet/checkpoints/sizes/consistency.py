"""Contradictions between weights and config.json: another checkpoint's config would plan the wrong memory.

Sizes of weights come from the headers and are true in any case. What a token keeps (KV heads, states) and what it reads
(experts) comes from the config, and is held against the shapes of a few tensors that have one name in all families. A
checkpoint may hold several models (a talker beside a thinker, an encoder before a decoder) and each way to pack weights has
shapes of its own, so it is enough that one tensor of a name, or one stack of layers, agrees.
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
"""What computes the keys that are cached, or the latent, and the scales of it."""
ANY = -1
"""Stands for the outputs of a projection whose packing tells nothing about them."""
CONVOLUTION = ".conv1d.weight"
NORM = ".input_layernorm.weight"
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings|embed|wte|word_embeddings|tok_embeddings)\.weight$")
EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")
JOINS_A_HEAD = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head)\b")
"""What an MTP layer has after the decoder's layers, and a decoder's layer has not."""

PLAIN = ("BF16", "F16", "F32")

Widths = dict[int | None, set[int]]


@dataclass(slots=True)
class Shapes:
    """Sizes that tensors have, by decoder layer where they belong to one."""

    keys: Widths = field(default_factory=lambda: defaultdict(set))
    convolutions: Widths = field(default_factory=lambda: defaultdict(set))
    hidden: set[int] = field(default_factory=set)
    experts: dict[str, int] = field(default_factory=dict)
    """By the name of the mixture, how many it holds."""
    stacks: dict[str, dict[int, bool]] = field(default_factory=lambda: defaultdict(dict))
    """By what stands before the layer's number: layers from the last on that the config speaks of, and whether they are an
    MTP head's."""


def read_shapes(tensors: Iterable[Tensor], names: PartNames) -> Shapes:
    """The sizes that the config has to agree with. Towers, heads and drafts have their own."""
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
    """Hold what the config says against the tensors.

    Args:
        shapes: of the tensors.
        layers: as the config describes them, one by one.
        hidden: the config's `hidden_size`.
        experts: routed ones of a layer.
        mtp_layers: as many as the config speaks of.
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
        said = f"{layer.kv_heads} KV heads of {layer.key_dim} in layer {index}"
        raise _contradiction(where, said, f"keys of {_all(shapes.keys[index])} in all")
    if layer.state is not None and _differs(shapes.convolutions, index, layer.state.conv_channels):
        said = f"a convolution of {layer.state.conv_channels} channels in layer {index}"
        raise _contradiction(where, said, f"one of {_all(shapes.convolutions[index])}")


def _differs(widths: Widths, index: int, expected: int) -> bool:
    return index in widths and widths[index].isdisjoint({expected, ANY})


def _strange(stack: Mapping[int, bool], layers: int, mtp_layers: int) -> int | None:
    """The first layer of a stack that a model of `layers` layers and that many of an MTP head does not have."""
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
    """Numbered ones, or all of a layer in one tensor."""
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


def _contradiction(where: str, said: str, has: str) -> FactError:
    return FactError(
        f"{where}: says {said}, and the weights have {has}.",
        means="config.json belongs to another checkpoint, or was changed.",
        do="Download the checkpoint again.",
    )
