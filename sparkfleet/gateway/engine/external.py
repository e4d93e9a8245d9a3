"""Endpoints outside the fleet: their part of picking an engine, and the form of a request to them.

A request goes out with its body, a model's name of theirs, and the key from a file: nothing else of the client.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby

from sparkfleet.gateway.engine.endpoints import EngineEndpoint, Picker
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, ModelEntry

EXTERNAL_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"))
"""Requests that may go outside: others may refer to what an engine of the fleet has stored."""
PASSED_HEADERS = frozenset((b"accept", b"content-type"))
"""Headers of a client that go outside."""
ANSWER_HEADERS = frozenset(
    (b"cache-control", b"content-encoding", b"content-length", b"content-type", b"retry-after")
)
"""Headers of their answers that clients get: others may name the owner's account."""
_LONGEST_KEY = 4096
_KEY = re.compile(r"[\x21-\x7e]+")


class KeyUnusable(Exception):
    """A key file that cannot be used. Its text never has the key."""


class ExternalPicker:
    """Finds the engine of a group, or the address of an endpoint outside the fleet."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    async def pick(
        self, model: ModelEntry, groups: Sequence[GroupEntry], *, exclude: AbstractSet[str]
    ) -> EngineEndpoint | None:
        """See `Picker`."""
        for is_own, run in groupby(groups, lambda group: group.external is None):
            if is_own:
                found = await self._picker.pick(model, list(run), exclude=exclude)
            else:
                found = _first_target(run, exclude)
            if found is not None:
                return found
        return None


def _first_target(groups: Iterable[GroupEntry], exclude: AbstractSet[str]) -> EngineEndpoint | None:
    for group in groups:
        if group.external is not None and group.external.url not in exclude:
            return EngineEndpoint(
                url=group.external.url, group=group.app, app=group.app, external=group.external
            )
    return None


def read_key(address: ExternalAddress) -> str:
    """The API key of an endpoint; "" if it has none. Read for each request, so that a changed file needs no restart.

    Raises:
        KeyUnusable: the file cannot be read, others may read it, or it has no key.
    """
    if address.key_file is None:
        return ""
    try:
        # Not blocking: a FIFO without a writer would hold up every stream.
        place = os.open(address.key_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise KeyUnusable(f"its key_file {address.key_file} cannot be read: {error.strerror}") from None
    try:
        mode = os.fstat(place).st_mode
        if not stat.S_ISREG(mode):
            raise KeyUnusable(f"its key_file {address.key_file} is no file")
        if mode & 0o077:
            raise KeyUnusable(
                f"its key_file {address.key_file} may be read by others: chmod 600 {address.key_file}"
            )
        text = os.read(place, _LONGEST_KEY + 1).decode("ascii", "replace")
    finally:
        os.close(place)
    if len(text) > _LONGEST_KEY:
        raise KeyUnusable(
            f"its key_file {address.key_file} is longer than {_LONGEST_KEY} bytes: it has no key"
        )
    text = text.strip()
    if not _KEY.fullmatch(text):
        raise KeyUnusable(f"its key_file {address.key_file} has no key: expected one line of printable ASCII")
    return text


def target_of(address: ExternalAddress, target: str) -> str:
    """Path at the endpoint for a client's path below /v1."""
    base = "/" + address.url.partition("://")[2].partition("/")[2].strip("/")
    return ("/v1" if base == "/" else base) + target.removeprefix("/v1").partition("?")[0]
