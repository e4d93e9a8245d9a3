"""Finds the launch lines of a text: a script, a compose file, a recipe, a unit of systemd, or an inspected container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.document_launches import (
    document_launches,
    inspected_launches,
    is_document,
    is_inspected,
)
from sparkfleet.fleet.conversion.engine_line import EngineLine
from sparkfleet.fleet.conversion.script_launches import Launch, script_launches
from sparkfleet.fleet.conversion.shell_command import UNKNOWN, Assumptions, shown, unknown_names
from sparkfleet.fleet.conversion.shell_text import commands_of

RANK_FLAGS = ("--node-rank", "-r")
_FIRST_RANK = "0"
_RANK_VARIABLE = re.compile(r"--node[-_]rank[=\s]+[\"']?\$\{?(\w+)", re.ASCII)
OF_EVERY_SHELL = frozenset({"0", "HOME", "HOSTNAME", "PATH", "PWD", "USER"})
"""Variables that are set wherever a script runs."""
MOST_NAMES = 5
"""Variables without a value that an error names."""


def launches_in(text: str, variables: Mapping[str, str]) -> tuple[Launch, ...]:
    """The engines that a text starts, in its order; of a group of ranks the first rank alone.

    A script that each node runs with its own rank is read as on the first one: a rank that nothing sets is 0, and if only
    further ranks are found so, the tests that nothing decides are false, then true.

    Args:
        text: of the file.
        variables: values of variables and positional parameters, which the text's own assignments do not replace.

    Raises:
        SpecError: it is YAML with neither services nor a recipe, or nested without end; or it has launch lines of further
            ranks alone.
    """
    further: tuple[Launch, ...] = ()
    for undecided in (None, False, True):
        assumed = Assumptions(variables, undecided)
        found, ranks = _with_first_rank(text, assumed)
        first = tuple(one for one in found if not _is_further_rank(one.line))
        if first:
            notes = (*_rank_notes(ranks), *_test_notes(undecided))
            return tuple(_with_notes(one, notes) for one in first)
        further = further or found
    if further:
        raise _only_further(further[0].line, unset_names(text, variables))
    return ()


def unset_names(text: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that the commands of a text use and nothing sets, in its order."""
    if is_document(text) or is_inspected(text):
        used = re.findall(r"\$\{?([A-Za-z_]\w*)(?!\w*:?-)", text, re.ASCII)
        return tuple(dict.fromkeys(name for name in used if name not in variables))
    words = (word for one in commands_of(text, {}, Assumptions(variables, True)) for word in one.words)
    found = dict.fromkeys(name for word in words for name in unknown_names(word))
    return tuple(
        name for name in found if re.fullmatch(r"\w+", name, re.ASCII) and name not in OF_EVERY_SHELL
    )


def unset_words(names: Sequence[str]) -> str:
    """` Nothing sets $A, $B and 3 more.`; "" for none."""
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" Nothing sets {', '.join(f'${name}' for name in names[:MOST_NAMES])}{more}."


def _found(text: str, assumed: Assumptions) -> tuple[Launch, ...]:
    try:
        if is_inspected(text):
            return inspected_launches(text)
        if is_document(text):
            return document_launches(text, assumed)
        return tuple(script_launches(text, assumed.given, assumed))
    except RecursionError:
        raise SpecError("The text is nested too deeply.", means="No launch line was read.") from None


def _with_first_rank(text: str, assumed: Assumptions) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """The engines of a text, and the names of the variables that were set to the first rank for it.

    These are the variables behind the flags: an argument that they are set from may set other variables, too.
    """
    found = _found(text, assumed)
    ranks = [one.line.first(*RANK_FLAGS) or "" for one in found]
    if any(map(unknown_names, ranks)) and (written := _RANK_VARIABLE.findall(text)):
        ranks = [f"{UNKNOWN}{name}{UNKNOWN}" for name in written]
    names = dict.fromkeys(
        name for rank in ranks for name in unknown_names(rank) if re.fullmatch(r"\w+", name)
    )
    if not names:
        return found, ()
    return _found(
        text, assumed._replace(given={**assumed.given, **dict.fromkeys(names, _FIRST_RANK)})
    ), tuple(names)


def _is_further_rank(line: EngineLine) -> bool:
    rank = line.first(*RANK_FLAGS) or _FIRST_RANK
    is_known = not unknown_names(rank)
    return any(flag.plain == "--headless" for flag in line.flags) or (is_known and rank != _FIRST_RANK)


def _with_notes(launch: Launch, notes: Sequence[str]) -> Launch:
    return launch._replace(assumptions=(*launch.assumptions, *notes))


def _rank_notes(names: Sequence[str]) -> Iterator[str]:
    if names:
        shown_names = ", ".join(f"${name}" for name in names)
        yield f"{shown_names} = {_FIRST_RANK}, the first rank: nothing sets it, and a group is read from its first rank"


def _test_notes(undecided: bool | None) -> Iterator[str]:
    if undecided is not None:
        yield (
            f"every condition whose variables nothing sets is {str(undecided).lower()}: so the script starts the first rank"
        )


def _only_further(line: EngineLine, unset: Sequence[str]) -> SpecError:
    rank = line.first(*RANK_FLAGS)
    given = (
        f"{RANK_FLAGS[0]} is {shown(rank)}" if rank not in (None, "", _FIRST_RANK) else "it has --headless"
    )
    return SpecError(
        f"The launch line of {line.engine} is that of a further rank: {given}.",
        means=f"A group is read from the line of its first rank, which answers requests.{unset_words(unset)}",
        do="Give the first rank's script; if this one is run on every node, `--set NAME=0` with the name of its rank.",
    )
