"""Approximation of the KV cache of each group: the beginnings of the prompts that it had last.

It is as good as the engine's own events with one gateway (sgl-project/sglang#25466 and the routers of vLLM and llm-d decide
by the same); with several each knows what it sent itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from sparkfleet.gateway.request.prefix_blocks import ENDS, matched
from sparkfleet.gateway.routing_table import GroupEntry

_CHARACTERS_PER_TOKEN = 4
_TOKENS = 200_000
"""Tokens of a KV cache of which nothing is known."""
_FULL_CONTEXTS = 4
"""Full contexts that a KV cache has room for, at most; plans size it for fewer long requests than slots."""


class _Beginnings:
    """One group's blocks, least recently used first."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.characters = 0

    def add(self, prefix: tuple[int, ...], room: int) -> None:
        for index in range(len(prefix) - 1, -1, -1):  # the first block last: it is evicted last
            name = prefix[index]
            if name not in self.blocks:
                size = ENDS[index] - (ENDS[index - 1] if index else 0)
                self.blocks[name] = size
                self.characters += size
            self.blocks.move_to_end(name)
        while self.characters > room and self.blocks:
            self.characters -= self.blocks.popitem(last=False)[1]


class PrefixCaches:
    """The beginnings of prompts that each group has probably cached."""

    def __init__(self) -> None:
        self._of: dict[str, _Beginnings] = {}

    def blocks(self, app: str, prefix: tuple[int, ...]) -> int:
        """Number of leading blocks of a prompt that a group has."""
        there = self._of.get(app)
        return matched(prefix, there.blocks) if there is not None and prefix else 0

    def add(self, group: GroupEntry, prefix: tuple[int, ...]) -> None:
        """Records a prompt that is sent to a group."""
        if prefix:
            self._of.setdefault(group.app, _Beginnings()).add(prefix, room_of(group))

    def forget(self, app: str) -> None:
        """Records that a group's engine was lost: the next one begins with nothing."""
        self._of.pop(app, None)

    def keep(self, apps: Iterable[str]) -> None:
        """Forgets all other groups."""
        there = frozenset(apps)
        self._of = {app: blocks for app, blocks in self._of.items() if app in there}


def room_of(group: GroupEntry) -> int:
    """Characters of prompts that a group's KV cache has room for, roughly."""
    if group.context is None:
        return _TOKENS * _CHARACTERS_PER_TOKEN
    return group.context * min(group.concurrency or 1, _FULL_CONTEXTS) * _CHARACTERS_PER_TOKEN
