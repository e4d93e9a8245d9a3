"""API keys: made, listed, and made worthless."""

from __future__ import annotations

from sparkfleet.controlplane.state.event_log import EventLog
from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import ControlError
from sparkfleet.gateway.keys import generate
from sparkfleet.gateway.routing_table import KeyEntry


class ApiKeys:
    """The keys of a fleet.

    Args:
        store: keeps their names and hashes.
        journal: where it is written who came and went.
    """

    def __init__(self, store: Store, journal: EventLog) -> None:
        self._store = store
        self._journal = journal

    def list(self) -> tuple[KeyEntry, ...]:
        """All keys: names and hashes."""
        return self._store.keys()

    async def create(self, name: str) -> tuple[str, KeyEntry]:
        """Make an API key; its text is returned once and never kept. Raises ControlError for a name that is taken."""
        text, key = generate(name)
        if not self._store.add_key(key):
            raise ControlError(
                f"There is a key {name!r} already.",
                means="Its text was shown when it was made and is not kept.",
                do=f"Choose another name, or `sparkfleet keys revoke {name}` first.",
            )
        await self._journal.record("", 0, name, "key", f"key {name} created")
        return text, key

    async def revoke(self, name_or_id: str) -> KeyEntry:
        """Make a key worthless from now on. Raises ControlError for one that is not there."""
        key = self._store.remove_key(name_or_id)
        if key is None:
            raise ControlError(
                f"There is no key {name_or_id!r}.", do="`sparkfleet keys list` shows those there are."
            )
        await self._journal.record("", 0, key.name, "key", f"key {key.name} revoked")
        return key
