"""The page at `/`: its files, who may read what, and what it shows if the controller is away."""

import asyncio
import json
import re
from importlib.resources import files

import aiohttp
import pytest

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import StaticPicker
from sparkfleet.gateway.http_server import serve
from sparkfleet.gateway.page.fleet_view import DeploymentView, EventView, FleetView, NodeView
from sparkfleet.gateway.page.page_app import _API, FRESH_S, PageApp, reader_of
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry, RoutingTable

STATIC = ("/", "/page/page.js", "/page/draw.js", "/page/page.css", "/page/icon.svg")


def entry(name, keys=()):
    return ModelEntry(name=name, deployment="group", state="ready", keys=keys)


def event(number, deployment, message="m"):
    return EventView(id=number, at=1.0, deployment=deployment, subject="", kind="ready", message=message)


VIEW = FleetView(
    at=0.0,
    fleet="home",
    sparkfleet="1",
    nodes=(NodeView(name="spark1", joined=True, head=True),),
    deployments=tuple(
        DeploymentView(name=name, state="ready", generation=1, since=1.0) for name in ("open", "private")
    ),
    events=(event(3, ""), event(2, "private"), event(1, "open")),
)


class Home:
    """A gateway with the page, and a controller that may be away."""

    def __init__(self):
        self.asked, self.away, self.now = 0, False, 0.0
        (self.guest, guest), (self.owner, owner) = generate("guest"), generate("owner")
        models = {"open": entry("open"), "private": entry("private", ("owner",))}
        self.table = RoutingTable(version=1, models=models, keys=(guest, owner))
        self.page = PageApp(self._ask, clock=lambda: self.now)

    async def _ask(self):
        self.asked += 1
        if self.away:
            raise ConnectionError("gone")
        return VIEW.model_dump_json()

    async def __aenter__(self):
        self.gateway = GatewayApp(StaticPicker([]), table=self.table, page=self.page)
        self.server = await serve(self.gateway, "127.0.0.1", 0)
        self.http = aiohttp.ClientSession(self.server.url)
        return self

    async def __aexit__(self, *_):
        await self.http.close()
        await self.server.aclose()
        await self.gateway.aclose()

    async def get(self, path, key=None, **headers):
        if key:
            headers["authorization"] = f"Bearer {key}"
        async with self.http.get(path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    async def fleet(self, key=None):
        status, _, body = await self.get("/api/fleet", key)
        assert status == 200
        self.now += FRESH_S
        return json.loads(body)


@pytest.fixture
async def home():
    async with Home() as one:
        yield one


@pytest.mark.parametrize("path", STATIC)
async def test_a_static_file_has_a_strict_policy(home, path):
    status, headers, body = await home.get(path)
    assert status == 200
    assert body
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_small_and_has_nothing_from_outside():
    static = files("sparkfleet.gateway.page") / "static"
    text = {one.name: one.read_text() for one in static.iterdir()}
    assert sum(len(one.encode()) for one in text.values()) < 200_000
    page = text["index.html"]
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", page) == []
    for name, content in text.items():
        outside = re.findall(r"https?://[^\s\"'`]+", content)
        assert [one for one in outside if one != "http://www.w3.org/2000/svg"] == [], name
    for name in ("page.js", "draw.js"):
        assert (
            re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text[name]) == []
        )


async def test_this_machine_needs_no_key(home):
    found = await home.fleet()
    assert [one["name"] for one in found["deployments"]] == ["open", "private"]
    assert [one["id"] for one in found["events"]] == [3, 2, 1]
    assert (found["reader"], found["trouble"]) == (None, "")


async def test_a_key_sees_what_it_may_use(home):
    guest, owner = await home.fleet(home.guest), await home.fleet(home.owner)
    assert [one["name"] for one in guest["deployments"]] == ["open"]
    assert [one["id"] for one in guest["events"]] == [1]
    assert [one["name"] for one in owner["deployments"]] == ["open", "private"]
    assert "private" not in json.dumps(guest)


@pytest.mark.parametrize("path", ["/api/fleet", "/api/requests"])
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-sf-wrong"},
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example"},
        {"x-forwarded-for": "10.0.0.1"},
        {"forwarded": "for=10.0.0.1"},
    ],
    ids=str,
)
async def test_others_are_refused(home, path, headers):
    status, _, body = await home.get(path, **headers)
    assert status == 401
    assert b"spark1" not in body
    assert home.asked == 0


@pytest.mark.parametrize(
    ("client", "host", "seen"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:8000", True),
        ("::ffff:127.0.0.1", "localhost:1", True),
        ("192.168.1.5", "127.0.0.1:8000", False),
        ("192.168.1.5", "192.168.1.11:8000", False),
        ("127.0.0.1", "192.168.1.11:8000", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "localhost.evil.example", False),
    ],
)
def test_only_loopback_reads_without_a_key(client, host, seen):
    scope = {"client": (client, 1), "headers": [(b"host", host.encode())]}
    assert (reader_of(scope, RoutingTable()) is not None) == seen


async def test_a_controller_that_is_away_is_named_and_the_last_view_is_kept(home):
    await home.fleet()
    home.away = True
    found = await home.fleet()
    assert found["trouble"].startswith("The controller does not answer")
    assert [one["name"] for one in found["nodes"]] == ["spark1"]
    assert found["stale_s"] > 1000
    home.away = False
    assert (await home.fleet())["trouble"] == ""


async def test_without_any_answer_it_shows_the_reason(home):
    home.away = True
    found = await home.fleet()
    assert "nodes" not in found
    assert found["trouble"].startswith("The controller does not answer")


async def test_one_answer_of_the_controller_serves_all_pages(home):
    for _ in range(10):
        await home.get("/api/fleet")
    assert home.asked == 1


async def test_recent_requests_have_no_text_and_a_key_sees_its_own(home):
    for key in (home.guest, home.owner):
        body = {"model": "nothing", "messages": [{"role": "user", "content": "my secret"}]}
        async with home.http.post(
            "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ) as answer:
            assert answer.status == 404
    status, _, everything = await home.get("/api/requests")
    assert status == 200
    assert [one["key"] for one in json.loads(everything)["requests"]] == ["owner", "guest"]
    assert b"secret" not in everything
    assert b"sk-sf" not in everything
    _, _, own = await home.get("/api/requests", home.guest)
    assert [one["key"] for one in json.loads(own)["requests"]] == ["guest"]


async def test_only_reading_is_allowed(home):
    async with home.http.post("/api/fleet", json={}) as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    async with home.http.head("/") as answer:
        assert answer.status == 200
        assert await answer.read() == b""


async def test_the_gateway_adds_the_expected_end_of_a_start(home):
    assert [one["ready_at"] for one in (await home.fleet())["deployments"]] == [None, None]
    starting = home.table.models["open"].model_copy(update={"state": "starting", "ready_at": 1234.0})
    home.gateway.table = home.table.model_copy(update={"models": {**home.table.models, "open": starting}})
    assert [one["ready_at"] for one in (await home.fleet())["deployments"]] == [1234.0, None]


async def test_the_gateway_adds_its_queue(open_door):
    async def view():
        tiny = DeploymentView(name="tiny", state="ready", generation=1, since=1.0)
        return VIEW.model_copy(update={"deployments": (tiny,)}).model_dump_json()

    group = GroupEntry(app="app-0", concurrency=1, context=4096)
    model = ModelEntry(name="tiny", groups=(group,), deployment="engine", state="ready")
    engine = FakeEngine(model="tiny", pace=Pace(ttft_s=3600), token="internal-token")
    door = await open_door(engines=[engine], models=[model], page=PageApp(view))

    async def queue():
        async with aiohttp.request("GET", f"{door.url}/api/fleet") as answer:
            (found,) = (await answer.json())["deployments"]
        return found["queued"], found["wait_s"] > 0

    assert await queue() == (0, False)
    tasks = [asyncio.create_task(door.post()) for _ in range(3)]
    while door.gateway._queues.waiting("tiny") < 2:
        await asyncio.sleep(0.001)
    assert await queue() == (2, True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_route_is_in_the_document_and_every_documented_one_answers(home):
    document = json.loads((await home.get("/api"))[2])
    undocumented = {*_API} - {"/api"} - set(document["paths"])
    assert undocumented == set()
    for path, methods in document["paths"].items():
        assert home.page.owns(path)
        for method in ("get", "post", "put", "delete"):
            async with home.http.request(method, path) as answer:
                assert answer.status == (200 if method in methods else 405), (method, path)


async def test_the_api_is_described(home):
    status, _, body = await home.get("/api", host="somewhere")
    document = json.loads(body)
    assert status == 200
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {"/api/fleet", "/api/requests"}
    properties = document["components"]["schemas"]["FleetView"]["properties"]
    assert set(properties) == set(FleetView.model_fields)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', body.decode()):
        assert reference in document["components"]["schemas"]


async def test_without_a_page_the_gateway_answers_as_before(home):
    gateway = GatewayApp(StaticPicker([]), table=home.table)
    server = await serve(gateway, "127.0.0.1", 0)
    async with aiohttp.request("GET", f"{server.url}/") as answer:
        assert answer.status == 404
    await server.aclose()
    await gateway.aclose()
