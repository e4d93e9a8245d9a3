"""An entry's actor without Ray: what it reports, and the program that has its port."""

import asyncio
import os
import socket
import time
from types import SimpleNamespace

import pytest

from sparkfleet.controlplane.ray.entry_actor import EntryActor, holder_of
from sparkfleet.gateway.listening import EntryOrder
from sparkfleet.gateway.report import EntryReport
from sparkfleet.runtime.files.fleet_paths import STATE_VARIABLE, FleetPaths

HOST = "127.0.0.1"


@pytest.fixture
def actor(tmp_path, monkeypatch):
    """One in this process, with its thread and without its guard, which would end the tests with it."""
    monkeypatch.setattr(
        "sparkfleet.controlplane.ray.entry_actor.HangGuard", lambda *_: SimpleNamespace(start=bool)
    )
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    FleetPaths.of_this_process().create()
    one = EntryActor.__ray_metadata__.modified_class()
    yield one
    one._on_loop(ended(one))
    one._loop.call_soon_threadsafe(one._loop.stop)
    while one._loop.is_running():
        time.sleep(0.01)
    one._loop.close()


async def ended(actor):
    actor._entry.close()
    await asyncio.sleep(0.1)
    await asyncio.get_running_loop().shutdown_default_executor()


def kept(actor, order):
    return EntryReport.model_validate_json(actor.keep("spark2", order.model_dump_json() if order else ""))


def test_the_holder_of_a_port_is_named():
    with socket.create_server((HOST, 0)) as taken:
        words = holder_of(taken.getsockname()[1])
    assert words.endswith(f"(process {os.getpid()})")
    assert holder_of(1) == "Another program"


def test_an_entry_reports_what_it_does(actor):
    with socket.create_server((HOST, 0)) as gateway, socket.create_server((HOST, 0)) as taken:
        port, target = taken.getsockname()[1], gateway.getsockname()[1]
        order = EntryOrder(host=HOST, port=port, target=HOST, target_port=target, tls=False)
        refused = kept(actor, order)
        assert not refused.listening
        assert f"(process {os.getpid()}) has the port: stop it" in refused.trouble
        taken.close()
        assert kept(actor, order) == EntryReport(node="spark2", listening=True)
        with socket.create_connection((HOST, port)) as client:
            client.sendall(b"x")
            while (seen := kept(actor, order)).connections != 1:
                assert not seen.trouble
            left = kept(actor, None)
            assert (left.listening, left.connections) == (False, 1), "the stream goes on"
        gateway.close()
    away = kept(actor, order)
    assert away.listening
    assert away.trouble.endswith("Connection refused.")
