"""Finds the launch lines of a text: a shell script, a compose file, a recipe, or a unit of systemd."""

from __future__ import annotations

from collections.abc import Mapping

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.document_launches import document_launches, is_document
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
        found = (
            document_launches(text, variables)
            if is_document(text)
            else tuple(script_launches(text, variables))
        )
    except RecursionError:
        raise SpecError("The text is nested too deeply.", means="No launch line was read.") from None
    return tuple(one for one in found if not _is_further_rank(one.line))


def _is_further_rank(line: EngineLine) -> bool:
    rank = line.first("--node-rank", "-r")
    return any(flag.plain == "--headless" for flag in line.flags) or rank not in (None, "0", "")
