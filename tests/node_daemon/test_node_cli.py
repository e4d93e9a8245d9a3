"""Remains of a fleet that was brought down."""

import errno
import io
import json
import os
import socket
import subprocess
import sys

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from control_values import inventory

from sparkfleet.controlplane.api.api_calls import PATIENCE_S
from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.api.store_request import StoreRequest
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.state.store import Store
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon import node_cli, node_lifecycle, ray_watchdog
from sparkfleet.runtime.files.state_probe import found


async def test_what_was_starting_when_the_fleet_went_down_is_not_held_against_it(paths):
    """Even if no controller had started: switching the node off then is not a failed start."""
    store = Store(paths.database)
    store.groups.begin_start(("tiny", 1, 0), {"this": "first"})
    await node_lifecycle.down(paths)
    assert store.groups.starts() == {}
    store.close()


async def test_another_node_than_the_head_gets_no_state(paths):
    await node_lifecycle.down(paths)
    assert not paths.database.exists()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_controller_that_is_of_another_version_or_fails_does_not_keep_a_fleet_up(
    paths, monkeypatch, fails
):
    """`down` is what helps against both."""
    asked, left = [], [["moods"], []]

    async def answer(request):
        asked.append(request.path)
        if fails:
            return web.json_response({"error": {"what": "It failed.", "means": "", "do": ""}}, status=500)
        more = {"deployments": left.pop(0)} if request.path == "/v1/fleet" else {}
        return web.json_response({"sparkfleet": "99.0", **more})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        address = HeadAddress(
            ray="", api=str(server.make_url("")), gateway_host="127.0.0.1", gateway_port=8000
        )

        async def connect(paths):
            return FleetClient(address, "token")

        monkeypatch.setattr(node_lifecycle, "connect", connect)
        await node_lifecycle.down(paths)
    assert asked == (["/v1/stop"] if fails else ["/v1/stop", "/v1/fleet", "/v1/fleet"]), "in order, if it can"


@pytest.mark.parametrize("known", [True, False], ids=["this release", "an earlier one"])
async def test_an_up_lets_run_again_what_an_interrupted_down_has_stopped(paths, monkeypatch, known):
    asked = []

    async def resume(client):
        asked.append(client.address)
        if not known:
            raise ControlError("There is no /v1/resume.")

    address = HeadAddress(ray="", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000)

    async def connect(paths, patience_s=0.0):
        return FleetClient(address, "token")

    monkeypatch.setattr(node_lifecycle, "connect", connect)
    monkeypatch.setattr(FleetClient, "resume", resume)
    request = UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory())
    assert await node_lifecycle.up(request) == (address, None)
    assert asked == [address]


async def test_what_a_down_has_left_half_killed_is_ended_before_anything_is_started(paths, monkeypatch):
    """A controller whose GCS was gone still answered: `up` printed an endpoint that nothing served."""
    paths.create()

    async def cut_off(paths):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(node_lifecycle, "clear_leftovers", cut_off)
        with pytest.raises(KeyboardInterrupt):
            await node_lifecycle.down(paths)
    request = UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory())
    ended = []

    async def clear(paths):
        ended.append(paths.label)

    async def connect(paths, patience_s=0.0):
        raise AssertionError("what is left of a controller was asked")

    monkeypatch.setattr(node_lifecycle, "clear_leftovers", clear)
    monkeypatch.setattr(node_lifecycle, "connect", connect)
    await node_lifecycle.make_controller(request)
    assert ended == [paths.label]
    with pytest.raises(AssertionError, match="was asked"):
        await node_lifecycle.up(request)
    assert ended == [paths.label], "once"


async def test_a_controller_whose_own_work_has_failed_is_not_waited_for(paths, monkeypatch):
    address = HeadAddress(ray="", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000)
    client = FleetClient(address, "token")
    client.trouble = "its work failed: OSError()"

    async def connect(paths):
        return client

    async def stop(client):
        raise AssertionError("it was asked to stop what it does not look after")

    monkeypatch.setattr(node_lifecycle, "connect", connect)
    monkeypatch.setattr(FleetClient, "stop", stop)
    await node_lifecycle.down(paths)


def test_a_controller_that_does_not_answer_is_waited_for_where_ray_listens(paths):
    assert node_lifecycle._patience_s(paths) == 0, "it was never up"
    with socket.socket() as ray:
        ray.bind(("127.0.0.1", 0))
        address = HeadAddress(
            ray=f"127.0.0.1:{ray.getsockname()[1]}", api="", gateway_host="127.0.0.1", gateway_port=8000
        )
        paths.address.write_text(address.model_dump_json())
        assert node_lifecycle._patience_s(paths) == 0
        ray.listen()
        assert node_lifecycle._patience_s(paths) == PATIENCE_S


ROLE = Role(python="/opt/python", join=None, up=None).model_dump_json()


async def test_a_down_that_is_interrupted_is_found_and_repeated(paths, monkeypatch):
    """The role used to be removed first: the second `down` took the node for one that had never been in the fleet."""
    paths.role.write_text(ROLE)

    async def cut_off(paths):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(node_lifecycle, "down", cut_off)
        with pytest.raises(KeyboardInterrupt):
            await ray_watchdog.take_down(paths)
    assert not paths.role.exists(), "no watchdog starts it again"
    assert found(paths.root)["python"] == "/opt/python"
    await ray_watchdog.take_down(paths)
    assert "python" not in found(paths.root)


async def test_a_start_that_is_taken_down_ends_and_says_so(paths, monkeypatch):
    """A command that waits for it used to wait for minutes, and the role came back with the end of the start."""
    request = UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory(), apply=())
    address = HeadAddress(ray="", api="", gateway_host="127.0.0.1", gateway_port=8000)
    paths.role.write_text(Role(python="p", up=request).model_dump_json())

    async def up(request):
        paths.role.replace(paths.ended_role)  # as `down` does while it waits for this start
        return address, None

    monkeypatch.setattr(node_lifecycle, "up", up)
    assert await ray_watchdog.keep(paths) == 1
    assert json.loads(paths.outcome.read_text())["error"]["what"] == ray_watchdog.taken_down().what
    assert not paths.role.exists()
    assert await ray_watchdog.keep(paths) == 1, "nor does one begin without a role"


def test_a_verb_on_the_store_loads_nothing_of_the_other_verbs(tmp_path):
    """`sparkfleet restore` waits for it: Ray's certificates and the watchdog were half of its time."""
    code = (
        "import sys\n"
        "from sparkfleet.node_daemon import node_cli\n"
        "sys.argv = ['node_cli', 'store']\n"
        "code = node_cli.main()\n"
        "print(code, 'cryptography' in sys.modules, 'sparkfleet.node_daemon.ray_watchdog' in sys.modules)"
    )
    request = StoreRequest(fleet="home", state_dir=str(tmp_path), verb="list").model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", code], input=request, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ['{"copies": []}', "0 False False"]


@pytest.mark.parametrize("named", [True, False])
def test_a_home_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path, named):
    def read_only(request):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), *([str(tmp_path)] if named else []))

    monkeypatch.setattr(node_lifecycle, "prepare", read_only)
    monkeypatch.setattr(sys, "argv", ["node_cli", "prepare"])
    request = UpRequest(fleet="home", state_dir=str(tmp_path), inventory=inventory()).model_dump_json()
    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    assert node_cli.main() == 1
    place = tmp_path if named else "a file of the fleet's state"
    assert capsys.readouterr().err == f"{place}: Read-only file system\n"
