"""Arguments of an engine that are written as a shell would split them: `engine_args` has one argument per item. Pure.

An engine refuses such an item only when it starts, after its weights were staged. Not a check of the model `Deployment`, so
that a deployment that an older release stored stays readable: the loader of files calls it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import Problem, Where, quote

_JOINED = re.compile(r"(--?[A-Za-z][\w.-]*)\s+(.*)", re.DOTALL)
"""A flag and its value in one item. A value after `=` may have blanks."""
_ONE_DASH = re.compile(r"-[A-Za-z]{2,}-[A-Za-z].*", re.DOTALL)
"""A long flag with one dash: of the flags with one dash that engines have, none has a second one."""
_QUOTED = ("{", "[", '"', "'")


def argument_problems(deployment: Deployment) -> Iterator[Problem]:
    """Items of `engine_args` that an engine would not read as they are meant, with their places in the file."""
    places: list[tuple[Where, Sequence[str]]] = [(("engine_args",), deployment.engine_args)]
    for index, entry in enumerate(deployment.variants):
        places.append((("variants", index, "engine_args"), entry.engine_args or ()))
    for where, items in places:
        for number, text in _faults(items):
            yield Problem((*where, number), text)


def _faults(items: Sequence[str]) -> Iterator[tuple[int, str]]:
    complete = True  # nothing before this item takes a value
    for number, item in enumerate(items):
        if joined := _JOINED.fullmatch(item):
            flag, rest = joined.groups()
            words = [flag, *([rest] if rest.startswith(_QUOTED) else rest.split())]
            listed = json.dumps(words, ensure_ascii=False)
            yield number, f"found {quote(item)}, which is one argument. Expected one per item: {listed}."
        elif _ONE_DASH.fullmatch(item):
            yield number, f'found {quote(item)}. Expected two dashes: "-{item}".'
        elif complete and not item.startswith("-"):
            yield (
                number,
                f"found {quote(item)}, which is no flag and follows none that takes a value.{_meant(item)}",
            )
        complete = "=" in item if item.startswith("-") else complete


def _meant(item: str) -> str:
    """The flag that a word with a value probably is."""
    named = re.match(r"[A-Za-z][\w.-]*=", item)
    return f' Expected "--{item}".' if named else ' Expected a flag such as "--max-num-seqs".'
