"""Sizes of a GGUF checkpoint's parts from its tensors, and the quantisation that they show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from sparkfleet.checkpoints.arch.weight_parts import Part, Portion
from sparkfleet.checkpoints.gguf.gguf_header import GgufTensor
from sparkfleet.checkpoints.gguf.gguf_types import PLAIN_GGUF
from sparkfleet.checkpoints.quantization.formats import Cover, Quantization, Scheme
from sparkfleet.checkpoints.quantization.quantization_scope import LAYER_PARTS

_BLOCK = re.compile(r"blk\.([0-9]{1,4})\.")
_LINEAR = re.compile(r"(ssm_|shortconv\.|time_mix_|channel_mix_)")
_MIXER = re.compile(r"attn_(qkv|gate|q|k|v|output)\b")
MOST_COVERED = 1000
"""Parts of a whole in which `stored_bits` of a scheme is exact enough."""


def layer_of_tensor(name: str) -> int | None:
    """The number of the layer in a tensor's name; None if there is none."""
    found = _BLOCK.match(name)
    return int(found[1]) if found else None


def is_of_state(name: str) -> bool:
    """True for a tensor of a layer that keeps a state."""
    return layer_of_tensor(name) is not None and _LINEAR.match(_last(name)) is not None


def _last(name: str) -> str:
    """A tensor's name without its layer."""
    return name.partition(".")[2].partition(".")[2] if layer_of_tensor(name) is not None else name


class GgufParts:
    """Assigns parts by the names of llama.cpp (`TENSOR_NAMES` of its gguf-py), for a model with `layers` decoder layers of
    which those in `linear` keep a state."""

    def __init__(self, layers: int, linear: Collection[int] = ()) -> None:
        self._layers = layers
        self._linear = frozenset(linear)

    def part(self, name: str) -> Part:
        """The part of a tensor."""
        layer = layer_of_tensor(name)
        if ".nextn." in name or name.startswith("nextn.") or (layer is not None and layer >= self._layers):
            return Part.MTP
        last = _last(name)
        if layer in self._linear and (_LINEAR.match(last) or _MIXER.match(last)) and "norm" not in last:
            return Part.LINEAR_ATTENTION
        return next((part for part, fits in _RULES if fits(last)), Part.OTHER)


def tower_part(name: str) -> Part:
    """The part of a tensor of a tower's file: its vision, or else (sound) other."""
    is_vision = name.startswith(("v.", "mm.")) and not name.startswith("mm.a.")
    return Part.VISION if is_vision else Part.OTHER


_RULES: tuple[tuple[Part, Callable[[str], object]], ...] = (
    (Part.NORMS, lambda name: "norm" in name),
    (Part.EMBEDDING, re.compile(r"(token_embd|per_layer_token_embd|position_embd|token_types)\.").match),
    (Part.HEAD, re.compile(r"output\.").match),
    (Part.ROUTER, re.compile(r"ffn_gate_inp|exp_probs_b|ffn_gate_tid2eid").match),
    (Part.SHARED_EXPERTS, re.compile(r"ffn_\w+_shexp").match),
    (Part.EXPERTS, re.compile(r"ffn_\w+_(ch)?exps|ffn_(gate|up|down)\.[0-9]").match),
    (Part.LINEAR_ATTENTION, _LINEAR.match),
    (Part.ATTENTION, re.compile(r"attn_|indexer").match),
    (Part.MLP, re.compile(r"ffn_").match),
)
"""In this order: the first match decides; a tensor without a match is OTHER."""


def portions_of(tensors: Iterable[GgufTensor], part_of: Callable[[str], Part]) -> tuple[Portion, ...]:
    """Sizes by part and type, in a fixed order."""
    sizes: Counter[tuple[Part, str, str]] = Counter()
    parameters: Counter[tuple[Part, str, str]] = Counter()
    for tensor in tensors:
        key = (part_of(tensor.name), tensor.kind.name, tensor.kind.format)
        sizes[key] += tensor.stored_bytes
        parameters[key] += tensor.elements
    return tuple(
        Portion(part=part, dtype=dtype, format=form, parameters=parameters[part, dtype, form], bytes=size)
        for (part, dtype, form), size in sorted(sizes.items())
    )


def quantization_of(portions: Sequence[Portion]) -> Quantization | None:
    """The quantisation that the types of the tensors show; None if none is quantised.

    The main scheme is the one with the most weights of the layers; its bits are the mean of the types of its format.
    """
    quantised = [one for one in portions if one.format not in PLAIN_GGUF and one.parameters]
    inside = [one for one in quantised if one.part in LAYER_PARTS] or quantised
    if not inside:
        return None
    counts: Counter[str] = Counter()
    for one in inside:
        counts[one.format] += one.parameters
    main = counts.most_common(1)[0][0]
    schemes = {form: _scheme(form, quantised) for form in dict.fromkeys(one.format for one in quantised)}
    return Quantization(method="gguf", scheme=schemes[main], covers=tuple(_covers(portions, schemes)))


def _covers(portions: Sequence[Portion], schemes: dict[str, Scheme]) -> Iterable[Cover]:
    for part in dict.fromkeys(one.part for one in portions):
        of_part: Counter[str] = Counter()
        for one in portions:
            if one.part is part:
                of_part[one.format] += one.parameters
        whole = sum(of_part.values())
        for form, count in of_part.items():
            if form in schemes and count:
                yield Cover(part=part, scheme=schemes[form], share=count / whole)


def _scheme(form: str, portions: Sequence[Portion]) -> Scheme:
    """The scheme of a format, with the mean bits of its types. Multiplications are in the model's own precision."""
    same = [one for one in portions if one.format == form]
    bits = 8 * sum(one.bytes for one in same) / sum(one.parameters for one in same)
    whole = int(bits)
    return Scheme(
        format=form, bits=whole, group_size=MOST_COVERED, scale_bits=round(MOST_COVERED * (bits - whole))
    )


def dtype_of(portions: Sequence[Portion]) -> str:
    """Precision of the weights that are not quantised, as most of them in matrices have it."""
    names = {"fp16": "float16", "bf16": "bfloat16", "f32": "float32"}
    counts: Counter[str] = Counter()
    for one in portions:
        if one.format in names and one.part not in (Part.NORMS, Part.ROUTER):
            counts[one.format] += one.parameters
    found = counts.most_common(1)
    return names[found[0][0]] if found and found[0][0] != "f32" else "float16"
