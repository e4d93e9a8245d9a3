"""Owners of stored responses (Responses API), so that no other key reads, cancels, deletes or continues one.

Engines know no keys. A response's id has 128 random bits, so that nobody guesses one; this is for ids that were seen in a
log or a chat. Held in memory: after a restart of the gateway the id alone decides.
"""

from __future__ import annotations

import re
from collections import OrderedDict

MOST = 100_000
"""Responses whose owner is remembered, in about 25 MB."""
RESPONSES = "/v1/responses"
_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_LONGEST = 4096


class ResponseOwners:
    """Ids of responses with the ids of their keys."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._of: OrderedDict[str, str] = OrderedDict()

    def note(self, beginning: bytes, key: str) -> None:
        """Remembers the owner of the response whose first bytes these are. `key`: its id."""
        found = _ID.search(beginning[:_LONGEST])
        if found is None:
            return
        self._of[found[1].decode()] = key
        if len(self._of) > self._most:
            self._of.popitem(last=False)

    def belongs_to_another(self, response: str, key: str) -> bool:
        """True if a key other than this one made a response."""
        return self._of.get(response, key) != key


def response_of(path: str) -> str:
    """The response that a path names; "" if it names none."""
    parts = path.split("/")
    return parts[3] if len(parts) > 3 and path.startswith(f"{RESPONSES}/") else ""
