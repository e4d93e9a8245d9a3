"""The address of the endpoint."""

import sqlite3

import pytest
from controller_world import ADDRESS


async def test_an_address_whose_change_fails_is_not_used(world, monkeypatch):
    """The command was told so and took its files back, while the gateways listened at the new one until the next restart."""

    async def full(*event):
        raise sqlite3.OperationalError("database or disk is full")

    gateways = world.controller.gateways
    await world.put()
    await world.ready(1)
    monkeypatch.setattr(world.controller.journal, "record", full)
    with pytest.raises(sqlite3.OperationalError):
        await gateways.listen(ADDRESS.model_copy(update={"gateway_port": 8001}), "me")
    assert gateways.address == ADDRESS
    assert (await world.table()).listening == ADDRESS.listening
