"""The API of a simulated controller, served."""

import pytest
from aiohttp.test_utils import TestServer
from api_values import SEALER, TOKEN
from controller_world import World

from sparkfleet.controlplane.api import http_api
from sparkfleet.controlplane.api.api_tokens import ApiTokens


@pytest.fixture
async def served(tmp_path):
    world = World(tmp_path)
    server = TestServer(http_api.build(world.controller, ApiTokens(TOKEN), world.metrics.registry, SEALER))
    await server.start_server()
    world.url = str(server.make_url("")).rstrip("/")
    yield world
    await server.close()
    world.store.close()
