"""The client of the API: second tries, and controllers that are away, of another release, or fail."""

import asyncio
import re

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from api_values import SEALER, TOKEN, client, request
from controller_world import World

from sparkfleet import __version__
from sparkfleet.controlplane.api import http_api
from sparkfleet.controlplane.api.api_tokens import ApiTokens
from sparkfleet.controlplane.api.client import FleetClient, answering
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError, WrongFleetError


async def test_a_controller_of_an_older_release_gets_no_change(unused_tcp_port):
    asked = []

    async def answer(request):
        asked.append(request.method)
        return web.json_response({"version": 1, "sparkfleet": "0.1"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, port=unused_tcp_port) as server:
        address = HeadAddress(
            ray="", api=str(server.make_url("")), gateway_host="127.0.0.1", gateway_port=8000
        )
        async with FleetClient(address, TOKEN) as fleet:
            with pytest.raises(ControlError, match=r"runs sparkfleet 0\.1 with version 0 of its API"):
                await fleet.apply(request())
    assert asked == ["GET"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("verb", ["apply", "apply --retry", "delete", "undrain", "undrain group", "revoke"])
async def test_a_change_whose_answer_was_lost_is_made_once_and_reported(
    served, tmp_path, monkeypatch, verb, restarted
):
    """The second try of `delete` found no deployment, and the user an error about one that was deleted."""
    if verb != "apply":
        await served.put()
    await served.controller.commands.drain("spark-1", "me")
    if verb == "undrain group":
        await served.controller.commands.drain_group(("tiny", 1, 0), "me")
    await served.controller.keys.create("laptop")
    another = World(tmp_path)  # the controller after a restart, with the same store
    api = http_api.build(another.controller, ApiTokens(TOKEN), another.metrics.registry, SEALER)
    async with TestServer(api) as restart, client(served, patience_s=5.0) as fleet:
        tries = []
        real = fleet._once

        async def once(method, *rest):
            answer = await real(method, *rest)
            if method in ("PUT", "DELETE"):
                tries.append(method)
                if len(tries) == 1:
                    if restarted:
                        fleet._session._base_url = restart.make_url("")
                    raise ConnectionResetError("the controller ended")
            return answer

        monkeypatch.setattr(fleet, "_once", once)
        calls = {
            "apply": (lambda: fleet.apply(request()), (1, True)),
            "apply --retry": (
                lambda: fleet.apply(request().model_copy(update={"retry": True, "base": 1})),
                (2, True),
            ),
            "delete": (lambda: fleet.delete("tiny", "me"), None),
            "undrain": (lambda: fleet.undrain("spark-1", "me"), None),
            "undrain group": (lambda: fleet.undrain_group("tiny/g1/0", "me"), ()),
            "revoke": (lambda: fleet.revoke_key("laptop"), {"version": 1, "name": "laptop", "late": []}),
        }
        call, answer = calls[verb]
        before = len(another.store.events.read())
        assert await call() == answer
        assert len(another.store.events.read()) == before + 1
        assert len(tries) == 2
        if verb not in ("apply", "apply --retry"):  # another command finds nothing to change
            with pytest.raises(ControlError):
                await call()
    another.store.close()


async def test_a_second_try_does_not_delete_what_was_applied_meanwhile(served, monkeypatch):
    await served.put()
    async with client(served, patience_s=5.0) as fleet:
        real = fleet._once

        async def once(method, *rest):
            answer = await real(method, *rest)
            if method == "DELETE" and not (await fleet.history("tiny"))[1:]:
                await served.put()
                raise ConnectionResetError("the controller ended")
            return answer

        monkeypatch.setattr(fleet, "_once", once)
        await fleet.delete("tiny", "me")
    assert served.store.deployments.desired()["tiny"].generation == 2


async def test_a_controller_that_is_away_for_a_moment_is_waited_for(served, tmp_path, unused_tcp_port):
    served.url = f"http://127.0.0.1:{unused_tcp_port}"
    runner = web.AppRunner(
        http_api.build(served.controller, ApiTokens(TOKEN), served.metrics.registry, SEALER)
    )
    await runner.setup()
    async with client(served, patience_s=10) as fleet:
        asked = await _after_a_refusal(fleet, runner, unused_tcp_port)
        assert asked.fleet == "home"
    await runner.cleanup()


async def _after_a_refusal(fleet, runner, port):
    refused = []
    once = fleet._once

    async def start_after_the_first(*args):
        try:
            return await once(*args)
        except aiohttp.ClientConnectionError:
            refused.append(1)
            if len(refused) == 1:
                await web.TCPSite(runner, "127.0.0.1", port).start()
            raise

    fleet._once = start_after_the_first
    answer = await fleet.fleet()
    assert refused == [1]
    return answer


async def test_a_controller_that_stays_away_is_an_error_that_says_what_to_do(served, unused_tcp_port):
    served.url = f"http://127.0.0.1:{unused_tcp_port}"
    async with client(served) as fleet:
        with pytest.raises(ControlError, match="does not answer") as caught:
            await fleet.fleet()
    assert "up" in caught.value.do


async def test_a_controller_of_another_version_is_known_for_one(served, monkeypatch):
    monkeypatch.setattr("sparkfleet.controlplane.fleet_queries.__version__", "99.0")
    async with client(served) as fleet:
        address, status = fleet.address, await fleet.fleet()
    found = await answering(address, TOKEN)
    assert (found.version, status.sparkfleet) == ("99.0", "99.0")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("99.0", r"runs sparkfleet 99\.0, this command is"),
        (__version__, rf"runs another build of sparkfleet {re.escape(__version__)} than"),
    ],
)
async def test_a_controller_that_says_what_is_not_known_here_is_told_by_its_version(
    unused_tcp_port, version, words
):
    """The message about a checkout that was changed meanwhile was that 0.1.0 is not 0.1.0."""

    async def fleet(request):
        return web.json_response({"version": 1, "sparkfleet": version, "moods": []})

    app = web.Application()
    app.router.add_get("/v1/fleet", fleet)
    async with TestServer(app, port=unused_tcp_port) as server:
        address = HeadAddress(
            ray="", api=str(server.make_url("")), gateway_host="127.0.0.1", gateway_port=8000
        )
        found = await answering(address, TOKEN)
        assert found.version == version, "it is up"
        async with found:
            with pytest.raises(ControlError, match=words) as caught:
                await found.fleet()
    assert "`sparkfleet upgrade`" in caught.value.do


@pytest.mark.parametrize("answer", [{"events": [{"id": 1, "mood": "well"}]}, {"happened": []}])
async def test_events_of_another_version_are_told_by_that_version(unused_tcp_port, answer):
    async def fleet(request):
        return web.json_response({"version": 1, "sparkfleet": "99.0"})

    async def events(request):
        return web.json_response({"version": 1, **answer})

    app = web.Application()
    app.router.add_get("/v1/fleet", fleet)
    app.router.add_get("/v1/events", events)
    async with TestServer(app, port=unused_tcp_port) as server:
        address = HeadAddress(
            ray="", api=str(server.make_url("")), gateway_host="127.0.0.1", gateway_port=8000
        )
        async with FleetClient(address, TOKEN) as asking:
            with pytest.raises(ControlError, match=r"runs sparkfleet 99\.0, this command is") as caught:
                await asking.events(0)
    assert "`sparkfleet upgrade`" in caught.value.do


async def test_a_controller_that_ends_in_the_middle_of_an_answer_is_asked_again(unused_tcp_port):
    """`top` and `status` ended with a traceback."""
    asked = []

    async def fleet(request):
        asked.append(request)
        if len(asked) > 1:
            return web.json_response({"version": 1, "sparkfleet": "99.0"})
        response = web.StreamResponse(headers={"content-length": "1000", "content-type": "application/json"})
        await response.prepare(request)
        await response.write(b"{")
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/v1/fleet", fleet)
    async with TestServer(app, port=unused_tcp_port) as server:
        url = str(server.make_url(""))
        address = HeadAddress(ray="", api=url, gateway_host="127.0.0.1", gateway_port=8000)
        async with FleetClient(address, TOKEN, patience_s=5.0) as client:
            await client.ask_version()
    assert (client.version, len(asked)) == ("99.0", 2)


async def test_a_controller_is_waited_for_where_it_is_about_to_answer(served, unused_tcp_port):
    address = HeadAddress(
        ray="", api=f"http://127.0.0.1:{unused_tcp_port}", gateway_host="127.0.0.1", gateway_port=8000
    )
    assert await answering(address, TOKEN) is None
    runner = web.AppRunner(
        http_api.build(served.controller, ApiTokens(TOKEN), served.metrics.registry, SEALER)
    )
    await runner.setup()
    waiting = asyncio.create_task(answering(address, TOKEN, patience_s=10))
    await asyncio.sleep(0)
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    assert (await waiting).version
    await runner.cleanup()


async def test_a_controller_that_fails_is_not_taken_for_gone(served):
    """`up` kills the rest of Ray if no controller answers."""
    async with client(served) as fleet:
        address = fleet.address
    served.store.close()
    found = await answering(address, TOKEN)
    assert found.version == ""
    with pytest.raises(WrongFleetError, match="token"):
        await answering(address, "another token")


async def test_an_answer_that_is_none_of_ours_is_an_error_of_ours(unused_tcp_port):
    async with TestServer(web.Application(), port=unused_tcp_port) as server:
        address = HeadAddress(
            ray="", api=str(server.make_url("")), gateway_host="127.0.0.1", gateway_port=8000
        )
        async with FleetClient(address, TOKEN) as fleet:
            with pytest.raises(ControlError, match="returned 404 for GET /v1/fleet"):
                await fleet.fleet()
