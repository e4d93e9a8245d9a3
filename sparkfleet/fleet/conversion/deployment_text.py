"""Writes the file of a converted launch line, with its origin and what was left out as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml

from sparkfleet.fleet.conversion.conversion import ConvertedLaunch
from sparkfleet.specs.document import dump
from sparkfleet.specs.fields import escape

_IN_ONE_LINE = ("aliases", "parallel", "speculation")
_WIDE = 112
"""Longest line of a comment, without its sign."""


def deployment_text(found: ConvertedLaunch, source: str) -> str:
    """A deployment file with its origin, and what was left out, as comments.

    Args:
        found: the deployment.
        source: name of the file that it was made of.
    """
    return "\n".join(_text_lines(found, source)) + "\n"


def _text_lines(found: ConvertedLaunch, source: str) -> Iterator[str]:
    yield f"# Made of a launch line in {escape(source)} by `sparkfleet convert`."
    for name, value in found.fields.items():
        if name in _IN_ONE_LINE:
            flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()
            yield f"{name}: {flow}"
        else:
            yield dump({name: value}).rstrip()
    if found.assumptions:
        yield "# Read with:"
        for assumption in found.assumptions:
            yield from _comment(assumption)
    if found.left_out:
        yield "# Left out:"
        grouped: dict[str, list[str]] = {}
        for one in found.left_out:
            grouped.setdefault(one.why, []).append(one.what)
        for why, names in grouped.items():
            yield from _comment(f"{', '.join(dict.fromkeys(names))}: {why}")
    if found.notes:
        yield "# The launch line does more, which is not part of a deployment:"
        for note in found.notes:
            yield from _comment(note)


def _comment(text: str) -> Iterator[str]:
    plain = escape(text)
    for number, line in enumerate(
        textwrap.wrap(plain, _WIDE, break_long_words=False, break_on_hyphens=False)
    ):
        yield f"#   {line}" if number == 0 else f"#     {line}"
