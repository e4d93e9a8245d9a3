"""Finds the launch lines of a text: a script, a compose file, a recipe, a unit of systemd, or an inspected container."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.document_launches import (
    document_launches,
    inspected_launches,
    is_document,
    is_inspected,
)
from sparkfleet.fleet.conversion.engine_line import EngineLine
from sparkfleet.fleet.conversion.script_launches import Launch, script_launches


def launches_in(text: str, variables: Mapping[str, str]) -> tuple[Launch, ...]:
    """The engines that a text starts, in its order; of a group of ranks the first rank alone.

    Args:
        text: of the file.
        variables: values for variables that the text does not set.

    Raises:
        SpecError: it is YAML with neither services nor a recipe, or nested without end.
    """
    try:
        found = _found(text, variables)
    except RecursionError:
        raise SpecError("The text is nested too deeply.", means="No launch line was read.") from None
    return tuple(one for one in found if not _is_further_rank(one.line))


def _found(text: str, variables: Mapping[str, str]) -> tuple[Launch, ...]:
    if is_inspected(text):
        return inspected_launches(text)
    return (
        document_launches(text, variables) if is_document(text) else tuple(script_launches(text, variables))
    )


def _is_further_rank(line: EngineLine) -> bool:
    rank = line.first("--node-rank", "-r")
    return any(flag.plain == "--headless" for flag in line.flags) or rank not in (None, "0", "")
