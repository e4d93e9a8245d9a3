"""Derives the parts of a model that a quantisation covers, as shares, from lists of module names and patterns.

Patterns come from untrusted files, so they are never run as regular expressions; the few forms that
quantisers write are read, and any other is reported as unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, product

from sparkfleet.checkpoints.arch.weight_parts import Part, PartNames
from sparkfleet.checkpoints.quantization.formats import Cover, Quantization, Scheme

MOST_ALTERNATIVES = 64

LAYER_PARTS = (Part.ATTENTION, Part.LINEAR_ATTENTION, Part.MLP, Part.EXPERTS, Part.SHARED_EXPERTS)
"""The parts of decoder layers that quantisers touch; routers, norms and embeddings stay as they are."""

WHOLE_PARTS = (Part.HEAD, Part.VISION, Part.MTP)
"""Parts outside the decoder layers: covered or not, as a whole."""

LEAF_SHARES: Mapping[str, float] = {
    "q_proj": 0.4,
    "k_proj": 0.1,
    "v_proj": 0.1,
    "o_proj": 0.4,
    "qkv_proj": 0.6,
    "q_a_proj": 0.1,
    "q_b_proj": 0.2,
    "kv_a_proj_with_mqa": 0.1,
    "kv_b_proj": 0.2,
    "gate_proj": 1 / 3,
    "up_proj": 1 / 3,
    "down_proj": 1 / 3,
    "gate_up_proj": 2 / 3,
    "w1": 1 / 3,
    "w2": 1 / 3,
    "w3": 1 / 3,
    "in_proj_qkv": 0.5,
    "in_proj_qkvz": 0.7,
    "in_proj_z": 0.25,
    "in_proj": 0.7,
    "out_proj": 0.25,
}
"""Rough share of a projection in its part: only for lists that leave out some projections of a layer."""

MINOR = re.compile(
    r"(^|\.)(index|conv1d|in_proj_(a|b|ba)$|b_proj$|[fg]_[ab]_proj$|eh_proj$|fc$|A_log|dt_bias)"
)
"""Modules too small to matter."""

_PREFIX = re.compile(r"^(re:|[-+]:)")
_GROUP = re.compile(r"\((?:\?:)?([\w|.*]+)\)")
_ANY = re.compile(r"(?:\.[*+]|\\[dw][*+]?|\[0-9\][*+]?|\[\^\.\][*+]?)\??")
_READABLE = re.compile(r"[\w.*:/-]*\Z", re.ASCII)
_WHOLE_LAYERS = re.compile(r"\blayers\.(\d{1,6})(\.?)\*\Z")
_EXPERT = re.compile(r"\bexperts\.\d+\.")


class Scope:
    """The modules of one model that a quantisation may cover."""

    def __init__(
        self,
        names: PartNames,
        members: Mapping[Part, Collection[int]],
        *,
        experts: int = 0,
        gated: bool = True,
    ) -> None:
        """`members`: for each part of `LAYER_PARTS`, the decoder layers that have it."""
        self.names = names
        self.members = members
        self.experts = experts
        self.gated = gated

    def quantization(
        self,
        method: str,
        scheme: Scheme,
        named: Iterable[tuple[str, Scheme | None]] = (),
        parts: Collection[Part] = LAYER_PARTS,
        *,
        kv_cache: str | None = None,
    ) -> Quantization:
        """The quantisation of these modules by one scheme, but for those that are named (`covers`)."""
        covers, unread = self.covers(named, scheme, parts)
        return Quantization(method=method, scheme=scheme, covers=covers, kv_cache=kv_cache, unread=unread)

    def covers(
        self, named: Iterable[tuple[str, Scheme | None]], default: Scheme | None, parts: Collection[Part]
    ) -> tuple[tuple[Cover, ...], tuple[str, ...]]:
        """Shares of each part, and the patterns that cannot be read.

        Args:
            named: module names or patterns with their scheme; None leaves a module as it is.
            default: the scheme of all in `parts` that is not listed.
            parts: the parts that the default covers.
        """
        found: dict[tuple[Part, Scheme | None], float] = {}
        unread = []
        for pattern, scheme in named:
            names = plain_names(pattern)
            if names is None:
                unread.append(pattern)
            for part, share in (each for name in names or () for each in self._shares(name)):
                found[part, scheme] = found.get((part, scheme), 0.0) + share
        return tuple(self._cover(found, default, parts)), tuple(unread[:MOST_ALTERNATIVES])

    def _cover(
        self,
        found: Mapping[tuple[Part, Scheme | None], float],
        default: Scheme | None,
        parts: Collection[Part],
    ) -> Iterator[Cover]:
        for part in (*LAYER_PARTS, *WHOLE_PARTS):
            size = len(self.members.get(part, ())) if part in LAYER_PARTS else 1
            left = 1.0 if size else 0.0
            for (named, scheme), share in found.items():
                if named is part and left:
                    taken = _rounded(min(left, share / size))
                    left = _rounded(left - taken)
                    yield Cover(part=part, scheme=scheme, share=taken)
            if default is not None and part in parts and left:
                yield Cover(part=part, scheme=default, share=left)

    def _shares(self, name: str) -> Iterator[tuple[Part, float]]:
        """Parts that a module name covers, each with the number of layers (or 1 for a part outside the layers)."""
        if MINOR.search(name):
            return
        part = self.names.part(name.replace("*", ""))
        whole = _WHOLE_LAYERS.search(name)
        if part in WHOLE_PARTS:
            # A list that leaves out single projections of an MTP head does not leave out the head.
            if part is not Part.MTP or _leaf(name) not in LEAF_SHARES:
                yield part, 1.0
        elif part in LAYER_PARTS:
            yield part, self._layers_named(name, part) * self._leaf_share(name, part)
        elif whole:
            yield from self._whole_layers(whole[1], exactly=bool(whole[2]))

    def _whole_layers(self, number: str, *, exactly: bool) -> Iterator[tuple[Part, float]]:
        """Shares for `layers.7.*`, everything in layer 7, and `layers.7*`, in layers 70 to 79 as well."""
        for part in LAYER_PARTS:
            layers = (str(layer) for layer in self.members.get(part, ()))
            count = sum(layer == number if exactly else layer.startswith(number) for layer in layers)
            if count:
                yield part, float(count)

    def _layers_named(self, name: str, part: Part) -> float:
        layers = self.members.get(part, ())
        numbers = re.search(r"\blayers\.(\d{1,6})\b", name)
        if numbers is None:
            return float(len(layers))
        return 1.0 if int(numbers[1]) in layers else 0.0

    def _leaf_share(self, name: str, part: Part) -> float:
        leaf = _leaf(name)
        share = LEAF_SHARES.get(leaf, 1.0)
        if not self.gated and leaf in ("up_proj", "down_proj"):
            share = 0.5
        if part is Part.EXPERTS and _EXPERT.search(name):
            share /= max(1, self.experts)
        return share


def plain_names(pattern: str) -> list[str] | None:
    """A pattern as names with `*` for any text; None for other forms."""
    text = _PREFIX.sub("", pattern).removeprefix("^").removesuffix("$")
    if text != pattern or "\\" in text:
        text = _ANY.sub("*", text.replace("\\.", "\0")).replace("\0", ".")
    pieces = _GROUP.split(text)
    choices = [piece.split("|") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    names = ["".join(choice) for choice in islice(product(*choices), MOST_ALTERNATIVES + 1)]
    if len(names) > MOST_ALTERNATIVES or not all(_READABLE.match(name) for name in names):
        return None
    return names


def _leaf(name: str) -> str:
    return name.strip("*.").rpartition(".")[2]


def _rounded(share: float) -> float:
    # Three thirds have to give exactly 1.
    return round(share, 6)
