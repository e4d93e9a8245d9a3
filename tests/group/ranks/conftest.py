"""Fixtures of the tests of ranks."""

import pytest

from sparkfleet.remote import page_cache


@pytest.fixture(autouse=True)
def dropped(monkeypatch):
    """Nodes whose page cache was dropped, and what ran by then. Not really: that would need root."""
    nodes = []

    async def drop(channel):
        nodes.append(channel.node)
        return True

    monkeypatch.setattr(page_cache, "drop", drop)
    return nodes
