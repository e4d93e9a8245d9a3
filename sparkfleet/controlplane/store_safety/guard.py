"""Decides if a store may be used: by its identity, by its mark, and by what runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.state.store_rows import StoreIdentity
from sparkfleet.controlplane.store_safety.mark import StoreMark
from sparkfleet.errors import ControlError

KEEPS = (
    "Nothing is started, ended or changed until that is settled: running groups go on serving, and the gateways keep"
    " their last table and keys."
)
CHOICES = (
    "`sparkfleet restore` lists the copies, and `sparkfleet restore COPY` puts one back; `sparkfleet restore --adopt` keeps"
    " what runs; `sparkfleet restore --begin-anew FLEET` forgets all of it."
)


class StoreFault(StrEnum):
    """Reasons for not using a store."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    OLDER = "older"
    NEWER_RELEASE = "newer release"
    MOVED = "moved"
    IN_USE = "in use"
    """Another process works with it."""
    SECRET = "secret"  # noqa: S105 (a reason)
    """Sealed values of the store could not be opened, nor others sealed."""


class StoreError(ControlError):
    """The store cannot be used. `fault` is the reason."""

    def __init__(self, fault: StoreFault, what: str, *, means: str = KEEPS, do: str = CHOICES) -> None:
        super().__init__(what, means=means, do=do)
        self.fault = fault

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.fault, self.what, self.means, self.do))


def _rebuild(fault: StoreFault, what: str, means: str, do: str) -> StoreError:
    return StoreError(fault, what, means=means, do=do)


@dataclass(frozen=True)
class StoreContent:
    """Content of a database file that decides if it is the right one."""

    schema: int
    """Version of its tables."""
    identity: StoreIdentity | None
    """None: a release without identities wrote it."""
    generations: Mapping[str, int]


def judge(
    fleet: str,
    file: Path,
    content: StoreContent | None,
    mark: StoreMark | None,
    running: Collection[Generation] = (),
) -> StoreError | None:
    """The reason for not using a store, or for not making one; None if there is none.

    Args:
        file: the database, for the words.
        content: of the file; None if it does not exist.
        mark: of the store that belongs there; None if none is known.
        running: generations of applications or ranks that exist now.
    """
    if content is None:
        return _missing(file, mark, running)
    return _foreign(fleet, file, content, mark) or _older(file, content, mark, running)


def _missing(file: Path, mark: StoreMark | None, running: Collection[Generation]) -> StoreError | None:
    if mark is not None:
        known = f" It had {mark.changes} changes." if mark.id else ""
        return StoreError(StoreFault.MISSING, f"The store {file} is missing or empty.{known}")
    if running:
        return StoreError(
            StoreFault.MISSING,
            f"The store {file} is missing or empty, and {_names(running)} of this fleet run.",
        )
    return None


def _foreign(fleet: str, file: Path, content: StoreContent, mark: StoreMark | None) -> StoreError | None:
    owner = content.identity.fleet if content.identity else ""
    if owner not in ("", fleet):
        return StoreError(StoreFault.FOREIGN, f"The store {file} belongs to fleet {owner}, not to {fleet}.")
    if mark is None or not mark.id or (content.identity is not None and content.identity.id == mark.id):
        return None
    found = content.identity.id[:8] if content.identity else "none"
    return StoreError(
        StoreFault.FOREIGN,
        f"The store {file} is another one than this fleet's: its id is {found}, expected {mark.id[:8]}.",
    )


def _older(
    file: Path, content: StoreContent, mark: StoreMark | None, running: Collection[Generation]
) -> StoreError | None:
    has = content.identity.changes if content.identity else 0
    if mark is not None and mark.id and has < mark.changes:
        return StoreError(
            StoreFault.OLDER, f"The store {file} is an older copy: it has {has} of {mark.changes} changes."
        )
    late = sorted(one for one in running if content.generations.get(one[0], 0) < one[1])
    if not late:
        return None
    name, generation = late[0]
    newest = content.generations.get(name, 0)
    newest_words = f"its newest is {newest}" if newest else "it has none of that name"
    return StoreError(
        StoreFault.OLDER,
        f"The store {file} is older than what runs: generation {generation} of {name} runs, {newest_words}.",
    )


def _names(running: Collection[Generation]) -> str:
    return ", ".join(f"{name} (generation {generation})" for name, generation in sorted(running))
