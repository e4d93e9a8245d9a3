"""The page at `/`: its files, who may read what, and what it shows if the controller is away."""

import asyncio
import json
import re
import time
from importlib.resources import files

import aiohttp
import pytest
from static_picker import StaticPicker

from sparkfleet.engines.fake import FakeEngine, Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.page import openapi
from sparkfleet.gateway.page.admin_routes import CAPTURE, DEPLOYMENTS, GROUPS, LOGS, NODES
from sparkfleet.gateway.page.fleet_change import LOG_LINES, FleetAnswer
from sparkfleet.gateway.page.fleet_view import DeploymentView, EventView, FleetView, NodeView, StoppedView
from sparkfleet.gateway.page.page_app import _API, FRESH_S, PageApp, reader_of
from sparkfleet.gateway.page.text_capture import TextCapture
from sparkfleet.gateway.routing_table import GroupEntry, KeyLimits, ModelEntry, RoutingTable

STATIC = ("/", "/page/page.js", "/page/admin.js", "/page/draw.js", "/page/page.css", "/page/icon.svg")


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
    stopped=(StoppedView(name="old", generation=4, nodes=("spark1",)),),
    events=(event(3, ""), event(2, "private"), event(1, "open")),
    warnings=("private: code of its checkpoint is not pinned",),
)


class Home:
    """A gateway with the page, and a controller that may be away."""

    def __init__(self):
        self.asked, self.away, self.now = 0, False, 0.0
        (self.guest, guest), (self.owner, owner) = generate("guest"), generate("owner")
        self.admin, admin = generate("boss", KeyLimits(admin=True, inference=False))
        models = {"open": entry("open"), "private": entry("private", ("owner",))}
        self.table = RoutingTable(version=1, models=models, keys=(guest, owner, admin))
        self.passed, self.answer = [], FleetAnswer(done="done")
        self.page = PageApp(self._ask, self._pass, self._pass, clock=lambda: self.now)

    async def _pass(self, request):
        if self.away:
            raise ConnectionError("gone")
        self.passed.append(json.loads(request))
        return self.answer.model_dump_json()

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

    async def change(self, method, path, key=None, **more):
        """Status and JSON of the answer to a request that may change something."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= more.pop("headers", {})
        async with self.http.request(method, path, headers=headers, **more) as answer:
            return answer.status, await answer.json()

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
    for name in ("page.js", "draw.js", "admin.js"):
        assert (
            re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text[name]) == []
        )


async def test_this_machine_needs_no_key(home):
    found = await home.fleet()
    assert [one["name"] for one in found["deployments"]] == ["open", "private"]
    assert [one["id"] for one in found["events"]] == [3, 2, 1]
    assert (found["reader"], found["trouble"]) == (None, "")
    assert found["warnings"] == list(VIEW.warnings)


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
    while door.gateway.proxy.queues.waiting("tiny") < 2:
        await asyncio.sleep(0.001)
    assert await queue() == (2, True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_route_is_in_the_document_and_every_documented_one_answers(home):
    document = json.loads((await home.get("/api"))[2])
    undocumented = {*_API, NODES, GROUPS, LOGS, CAPTURE, *DEPLOYMENTS} - {"/api"} - set(document["paths"])
    assert undocumented == set()
    for path, methods in document["paths"].items():
        assert home.page.owns(path)
        place = path.format(name="open", node="spark1", group="open/g1/0") + (
            "?minutes=1" if "capture" in path else ""
        )
        for method in ("get", "post", "put", "delete"):
            key = {"authorization": f"Bearer {home.admin}"}
            async with home.http.request(method, place, headers=key) as answer:
                assert answer.status == (200 if method in methods else 405) or (
                    (method, path, answer.status) == ("delete", CAPTURE, 400)
                ), (method, path, answer.status)


async def test_the_description_of_the_api_is_made_once(home, monkeypatch):
    """It took 50 ms of every stream, for anybody without a key."""
    monkeypatch.setattr(openapi, "openapi", lambda _: pytest.fail("it is made for a request"))
    for _ in range(2):
        assert (await home.get("/api"))[0] == 200


async def test_the_api_is_described(home):
    status, _, body = await home.get("/api", host="somewhere")
    document = json.loads(body)
    assert status == 200
    assert document["openapi"].startswith("3.1")
    assert {"/api/fleet", "/api/requests", NODES, GROUPS, LOGS, CAPTURE, *DEPLOYMENTS} == set(
        document["paths"]
    )
    properties = document["components"]["schemas"]["FleetView"]["properties"]
    assert set(properties) == set(FleetView.model_fields)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', body.decode()):
        assert reference in document["components"]["schemas"]


async def test_answers_have_the_fields_of_the_document_and_no_others(home, open_door):
    """Other programs are built on it: `/api/requests` was any object, and fields of `/api/fleet` were prose."""
    document = json.loads((await home.get("/api"))[2])

    def schema(path):
        return document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]

    known, unknown = schema("/api/fleet")["anyOf"]
    view = set(document["components"]["schemas"]["FleetView"]["properties"])
    home.away = True
    assert set(await home.fleet()) == set(unknown["required"])
    home.away = False
    assert set(await home.fleet(home.admin)) == view | set(known["allOf"][1]["required"])

    engine = FakeEngine(model="tiny", token="internal-token")
    model = ModelEntry(name="tiny", groups=(GroupEntry(app="app-0"),), deployment="engine", state="ready")
    door = await open_door(engines=[engine], models=[model], page=home.page)
    home.page.capture.begin(1)
    await door.post()
    items = schema("/api/requests")["properties"]["requests"]["items"]["properties"]
    (request,) = home.page._recent
    assert {"prompt", "answer", "group", "input_tokens", "at"} <= set(request) <= set(items)


CHANGES = [
    ("PUT", "/api/nodes/spark1/drain", {"verb": "drain", "node": "spark1"}),
    ("DELETE", "/api/nodes/spark1/drain", {"verb": "undrain", "node": "spark1"}),
    ("PUT", "/api/groups/open/g1/0/drain", {"verb": "drain", "group": "open/g1/0", "node": None}),
    ("DELETE", "/api/groups/open/g1/0/drain", {"verb": "undrain", "group": "open/g1/0"}),
    ("PUT", "/api/groups/open%2Fg1%2F0/drain", {"verb": "drain", "group": "open/g1/0"}),
    (
        "POST",
        "/api/deployments/open/stop?generation=3",
        {"verb": "stop", "deployment": "open", "generation": 3},
    ),
    ("POST", "/api/deployments/open/start", {"verb": "start", "deployment": "open", "generation": None}),
    ("POST", "/api/deployments/open/restart", {"verb": "restart", "deployment": "open"}),
]


@pytest.mark.parametrize(("method", "path", "passed"), CHANGES)
async def test_an_admin_key_changes_the_fleet_in_its_name(home, method, path, passed):
    assert await home.change(method, path, home.admin) == (200, {"version": 1, "done": "done"})
    (request,) = home.passed
    assert request["who"] == "boss (page)"
    assert passed.items() <= request.items()


@pytest.mark.parametrize("path", [path for _, path, _ in CHANGES] + ["/api/deployments/open/logs", CAPTURE])
async def test_without_an_admin_key_nothing_is_changed_and_no_log_is_read(home, path):
    for method in ("GET", "POST", "PUT", "DELETE"):
        for key in (None, home.guest, home.owner, "sk-sf-wrong"):
            status, answer = await home.change(method, path, key)
            assert status == 405 or status == (403 if key in (home.guest, home.owner) else 401)
            assert answer["error"]["message"]
    assert home.passed == []
    assert home.page.capture.until is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://127.0.0.1.evil.example"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing_even_with_a_key(home, headers):
    status, answer = await home.change("POST", "/api/deployments/open/stop", home.admin, headers=headers)
    assert (status, home.passed) == (403, [])
    assert "another site" in answer["error"]["message"]


async def test_the_page_itself_may(home):
    host = str(home.server.url).partition("://")[2]
    headers = {"origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert (await home.change("POST", "/api/deployments/open/stop", home.admin, headers=headers))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("POST", "/api/deployments/Open/stop", 400),
        ("POST", "/api/deployments/../stop", 404),
        ("POST", "/api/deployments/open/delete", 404),
        ("GET", "/api/deployments/open/stop", 405),
        ("POST", "/api/deployments/open/stop?generation=x", 400),
        ("POST", "/api/deployments/open/stop?force=1", 400),
        ("PUT", f"/api/nodes/{'a' * 40}/drain", 400),
        ("PUT", "/api/groups/open/drain", 400),
        ("PUT", "/api/groups/open/g1/x/drain", 400),
        ("POST", "/api/groups/open/g1/0/drain", 405),
        ("PUT", "/api/groups/open/g1/0/drain?force=1", 400),
        ("GET", "/api/deployments/open/logs?lines=2001", 400),
        ("GET", "/api/deployments/open/logs?lines=-1", 400),
        ("PUT", "/api/capture", 400),
        ("PUT", "/api/capture?minutes=61", 400),
    ],
)
async def test_a_request_that_is_none_is_refused_with_the_reason(home, method, path, status):
    found, answer = await home.change(method, path, home.admin)
    assert (found, home.passed) == (status, [])
    assert answer["error"]["message"]


async def test_a_change_has_no_body(home):
    found, _ = await home.change("POST", "/api/deployments/open/stop", home.admin, data=b"x" * 100_000)
    assert (found, home.passed) == (400, [])


async def test_a_refusal_of_the_controller_is_passed_on(home):
    home.answer = FleetAnswer(what="It is at generation 4.", means="Nothing was changed.", do="Look again.")
    status, answer = await home.change("POST", "/api/deployments/open/stop?generation=3", home.admin)
    assert status == 409
    assert answer["error"]["message"] == "It is at generation 4. Nothing was changed. Look again."


async def test_without_its_controller_a_change_is_refused(home):
    home.away = True
    status, answer = await home.change("POST", "/api/deployments/open/stop", home.admin)
    assert status == 503
    assert answer["error"]["message"].startswith("The controller does not answer.")
    assert (await home.change("GET", "/api/deployments/open/logs", home.admin))[0] == 503


async def test_the_log_of_a_rank_is_passed_on(home):
    home.answer = FleetAnswer(done="read", node="spark2", path="/logs/a.log", log="one\ntwo")
    status, answer = await home.change("GET", "/api/deployments/open/logs?rank=1", home.admin)
    assert (status, answer) == (
        200,
        {"version": 1, "node": "spark2", "path": "/logs/a.log", "log": "one\ntwo"},
    )
    assert home.passed == [{"deployment": "open", "replica": 0, "rank": 1, "lines": LOG_LINES}]


async def test_an_admin_key_sees_everything_and_others_not_what_was_stopped(home):
    boss, guest, here = await home.fleet(home.admin), await home.fleet(home.guest), await home.fleet()
    assert [one["name"] for one in boss["deployments"]] == ["open", "private"]
    assert [one["name"] for one in boss["stopped"]] == ["old"]
    assert (boss["admin"], guest["admin"], here["admin"]) == (True, False, False)
    assert (guest["stopped"], [one["name"] for one in here["stopped"]]) == ([], ["old"])


async def test_texts_are_kept_only_while_an_admin_has_that_on_and_only_admins_see_them(open_door):
    async def view():
        return VIEW.model_dump_json()

    door = await open_door(engines=[FakeEngine(model="tiny", token="internal-token")], page=PageApp(view))
    boss, entry = generate("boss", KeyLimits(admin=True))
    door.gateway.table = door.gateway.table.model_copy(
        update={"version": 2, "keys": (*door.gateway.table.keys, entry)}
    )

    async def request(method, path, key):
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.request(method, door.url + path, headers=headers) as answer:
            return await answer.json()

    async def texts(key):
        found = (await request("GET", "/api/requests", key))["requests"]
        return [(one.get("prompt"), one.get("answer")) for one in found]

    await door.post()
    assert "5 min" in (await request("PUT", "/api/capture?minutes=5", boss))["done"]
    await door.post()
    await door.post(stream=True)
    assert (await request("GET", "/api/fleet", door.key))["capture_until"] > time.time()
    streamed, whole, before = await texts(boss)
    assert before == (None, None)
    assert whole[0] == streamed[0] == "one two three"
    assert whole[1] == streamed[1]
    assert whole[1].startswith("the spark hums")
    assert await texts(door.key) == [(None, None)] * 3
    assert "deleted" in (await request("DELETE", "/api/capture", boss))["done"]
    assert await texts(boss) == [(None, None)] * 3


async def test_without_a_page_the_gateway_answers_as_before(home):
    gateway = GatewayApp(StaticPicker([]), table=home.table)
    server = await serve(gateway, "127.0.0.1", 0)
    async with aiohttp.request("GET", f"{server.url}/") as answer:
        assert answer.status == 404
    await server.aclose()
    await gateway.aclose()


async def test_texts_are_gone_after_their_time_even_if_nobody_looks():
    async def view():
        return VIEW.model_dump_json()

    now, page = [1000.0], PageApp(view)
    page.capture = TextCapture(lambda: now[0])
    page.capture.begin(1)
    page.note({"key": "me"}, "my secret")
    assert [one["prompt"] for one in page._recent] == ["my secret"]
    now[0] += 61
    page.note({"key": "me"}, "")
    assert all("prompt" not in one for one in page._recent)
