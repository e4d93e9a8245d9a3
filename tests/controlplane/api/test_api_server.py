"""The API's socket: bound as soon as its port and its token allow; 503 with the reason while the controller waits."""

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from sparkfleet.controlplane.api import api_server
from sparkfleet.controlplane.api.api_server import ApiServer, refusing
from sparkfleet.controlplane.api.client import FleetClient, answering
from sparkfleet.controlplane.api.client_errors import Held
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.controlplane.store_safety.guard import StoreError, StoreFault

TOKEN = "a" * 64


class Served:
    """A server on a port, and its troubles."""

    def __init__(self, tmp_path, port):
        self.url = f"http://127.0.0.1:{port}"
        self.token = tmp_path / "api.token"
        self.token.write_text(TOKEN)
        self.troubles = []
        self.server = ApiServer(self.url, self.token, self.token.with_suffix(".former"), self.troubles.append)

    async def get(self, token=TOKEN):
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + "/v1/fleet", headers={"authorization": f"Bearer {token}"}) as response,
        ):
            return response.status, await response.json()

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    @property
    def address(self):
        return HeadAddress(ray="", api=self.url, gateway_host="127.0.0.1", gateway_port=8000)


@pytest.fixture
async def served(tmp_path, unused_tcp_port, monkeypatch):
    monkeypatch.setattr(api_server, "AGAIN_S", 0.02)
    served = Served(tmp_path, unused_tcp_port)
    running = asyncio.create_task(served.server.run())
    yield served
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def works(token):
    async def answer(request):
        return web.json_response({"version": 1, "sparkfleet": "1", "fleet": "home"})

    app = web.Application()
    app.router.add_get("/v1/fleet", answer)
    return app


ERROR = StoreError(StoreFault.MISSING, "The store is missing.")


async def test_a_taken_port_is_named_and_used_as_soon_as_it_is_free(served):
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", int(served.url.rpartition(":")[2])))
        taker.listen()
        served.server.show(works)
        await served.until(lambda: served.troubles)
        assert "cannot listen on 127.0.0.1" in served.troubles[-1]
        assert "in use" in served.troubles[-1]
    await served.until(lambda: served.troubles[-1] == "")
    assert (await served.get())[0] == 200


async def test_a_missing_token_lets_nobody_in_and_is_named_to_everybody(served):
    served.token.unlink()
    served.server.show(works)
    await served.until(lambda: served.troubles)
    assert str(served.token) in served.troubles[-1]
    status, body = await served.get("")
    assert (status, str(served.token) in body["error"]["what"]) == (503, True)
    served.token.write_text(TOKEN)
    await served.until(lambda: served.troubles[-1] == "")
    assert (await served.get())[0] == 200


async def test_while_the_controller_waits_everything_is_503_and_only_the_token_gets_the_reason(served):
    served.server.show(lambda token: refusing(ERROR, token))
    await served.until(lambda: served.troubles == [""])
    status, body = await served.get()
    assert (status, body["error"]["what"]) == (503, "The store is missing.")
    status, body = await served.get("wrong")
    assert (status, body["error"]["what"]) == (503, "The controller waits.")


async def test_it_answers_with_what_was_shown_last(served):
    for _ in range(3):
        served.server.show(lambda token: refusing(ERROR, token))
        served.server.show(works)
    await served.until(lambda: served.troubles[-1:] == [""])
    assert (await served.get())[0] == 200


async def test_a_client_distinguishes_a_controller_that_waits_from_none(served):
    served.server.show(lambda token: refusing(ERROR, token))
    await served.until(lambda: served.troubles)
    assert await answering(served.address, TOKEN) is not None
    async with FleetClient(served.address, TOKEN, patience_s=0) as client:
        with pytest.raises(Held) as caught:
            await client.delete("tiny", "me")
    assert (caught.value.what, caught.value.exit_code) == ("The store is missing.", 5)


async def test_an_empty_token_lets_nobody_in_and_is_named_to_everybody(served):
    served.token.write_text("")
    served.server.show(works)
    await served.until(lambda: served.troubles and "hexadecimal" in served.troubles[-1])
    status, answer = await served.get(token="")
    assert status == 503
    assert "cannot be read: it does not have 64 hexadecimal digits" in answer["error"]["what"]
    served.token.write_text(TOKEN)
    await served.until(lambda: served.troubles[-1] == "")
    assert (await served.get())[0] == 200
