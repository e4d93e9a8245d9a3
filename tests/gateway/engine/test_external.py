"""Endpoints outside the fleet as spare groups of a model, over real sockets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_values import CHAT
from static_picker import StaticPicker

from sparkfleet.engines.fake import FakeEngine, InjectedFault, Pace
from sparkfleet.gateway.access.certificates import CertificateStore
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine import engine_pool
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.engine.external import KeyUnusable, read_key, target_of
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.listening import GatewayTls
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, ModelEntry, RoutingTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import Door, OpenDoor

KEY = "sk-outside-1"


@pytest.fixture
async def outside() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(model="foreign", token=KEY) as engine:
        yield engine


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    made = tmp_path / "key"
    made.write_text(f"{KEY}\n")
    made.chmod(0o600)
    return made


def spare(url: str, key_file: Path | None, **more: Any) -> GroupEntry:
    when = more.pop("when", "unavailable")
    key = str(key_file) if key_file is not None else None
    address = ExternalAddress(url=url, model="foreign", key_file=key, when=when)
    return GroupEntry(app=more.pop("app", "external/tiny/0"), external=address, **more)


def tiny(*external: GroupEntry, **more: Any) -> ModelEntry:
    return ModelEntry.model_validate(
        {"name": "tiny", "deployment": "engine", "state": "ready", "external": external, **more}
    )


def starting(*external: GroupEntry, **more: Any) -> ModelEntry:
    groups = (GroupEntry(app="app-0", ready=False),)
    return tiny(*external, state="starting", groups=groups, **more)


async def test_requests_go_outside_while_the_group_starts_and_nothing_else_of_the_client_does(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    door = await open_door(models=[starting(spare(outside.url + "/v1", key_file), aliases=("gpt",))])
    for name, stream in (("tiny", False), ("gpt", True)):
        body = door.body(model=name, stream=stream, note='\u00e4 "model"')
        headers = {"cookie": "a=b", "x-session-id": "s1", "user-agent": "spy/1", "x-private": "1"}
        async with door.http.post(door.url + CHAT, json=body, headers=headers) as answer:
            text = await answer.read()
            assert answer.status == 200
        assert text.endswith(b"data: [DONE]\n\n") if stream else json.loads(text)["choices"]
        sent = outside.requests[-1]
        asked = {"stream_options": {"include_usage": True}} if stream else {}
        assert json.loads(outside.bodies[-1]) == {**body, "model": "foreign", **asked}
        assert sent.headers["authorization"] == f"Bearer {KEY}"
        assert sent.headers["x-request-id"].startswith("req-")
        assert {name.lower() for name in sent.headers} == {
            "host",
            "accept",
            "accept-encoding",
            "authorization",
            "content-length",
            "content-type",
            "x-request-id",
        }
    assert not door.engine.requests
    assert door.value("sparkfleet_external_requests_total", model="tiny", status="200") == 2
    assert door.gateway.usage.totals()[0].requests == 2


async def test_a_group_that_is_ready_has_precedence(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    door = await open_door(models=[tiny(spare(outside.url, key_file, when="busy"))])
    for _ in range(3):
        assert (await door.post())[0] == 200
    assert (len(door.engine.requests), len(outside.requests)) == (3, 0)
    assert not door.value("sparkfleet_external_requests_total", model="tiny", status="200")


@pytest.mark.parametrize("when", ["unavailable", "busy"])
async def test_a_full_group_spills_over_only_if_the_deployment_says_so(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path, when: str
) -> None:
    pace = Pace(ttft_s=0.05, itl_s=0.02, tokens=10)
    group = GroupEntry(app="app-0", concurrency=1)
    door = await open_door(pace=pace, models=[tiny(spare(outside.url, key_file, when=when), groups=(group,))])
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as first:
        assert first.status == 200
        async with door.http.post(
            door.url + CHAT, json=door.body(), headers={"x-sparkfleet-explain": "only"}
        ) as shown:
            reason = await shown.json()
        assert (await door.post())[0] == 200
        await first.read()
    spilled = when == "busy"
    assert (len(door.engine.requests), len(outside.requests)) == ((1, 1) if spilled else (2, 0))
    assert reason["group"] == ("external/tiny/0" if spilled else "app-0")
    assert (f"are full: spills over to {outside.url}" in reason["why"]) == spilled
    assert KEY not in json.dumps(reason)


async def test_a_full_group_spills_over_although_another_one_failed(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    """The free slots of the one that failed are none: a request waited beside an idle endpoint."""
    groups = tuple(GroupEntry(app=app, concurrency=1) for app in ("app-0", "app-1"))
    door = await open_door(
        pace=Pace(ttft_s=0.05, itl_s=0.02, tokens=10),
        models=[tiny(spare(outside.url, key_file, when="busy"), groups=groups)],
    )
    door.gateway.proxy.observed.fail("app-1")
    async with door.http.post(door.url + CHAT, json=door.body(stream=True)) as first:
        assert first.status == 200
        assert (await door.post())[0] == 200
        await first.read()
    assert (len(door.engine.requests), len(outside.requests)) == (1, 1)


async def test_a_request_that_no_group_can_serve_goes_to_the_endpoint_that_can(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    groups = (GroupEntry(app="app-0", vision=False, context=64),)
    blind = spare("http://127.0.0.1:9", key_file, app="external/tiny/0", vision=False, context=128)
    sees = spare(outside.url, key_file, app="external/tiny/1", vision=True)
    door = await open_door(models=[tiny(blind, sees, groups=groups)])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert (await door.post(messages=[{"role": "user", "content": [image]}]))[0] == 200
    assert (await door.post(messages=[{"role": "user", "content": "word " * 2000}]))[0] == 200
    assert (len(outside.requests), len(door.engine.requests)) == (2, 0)
    body = door.body(messages=[{"role": "user", "content": "word " * 2000}])
    async with door.http.post(door.url + CHAT, json=body, headers={"x-sparkfleet-explain": "only"}) as shown:
        reason = await shown.json()
    assert reason["why"] == f"no ready group can serve it: spills over to {outside.url}"
    assert [(one["group"], one["external"]) for one in reason["groups"]] == [("external/tiny/1", outside.url)]
    assert reason["left_out"] == {"app-0": "its context of 64 tokens is too short"}
    status, _, body = await door.post("/v1/messages", messages=[{"role": "user", "content": "word " * 2000}])
    assert status == 400
    assert b"context" in body or b"token" in body


async def test_the_last_group_that_dies_before_the_first_byte_is_replaced_by_the_endpoint(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    dying = FakeEngine(model="tiny", fault=InjectedFault(kind="die"), token="internal-token")
    door = await open_door(engines=[dying], models=[tiny(spare(outside.url, key_file))])
    assert (await door.post())[0] == 200
    assert (await door.post())[0] == 200  # at once: its group failed lately
    assert (len(dying.requests), len(outside.requests)) == (1, 2)
    assert door.value("sparkfleet_retries_total", model="tiny") == 1


@pytest.mark.parametrize("fault", [307, 401, 403, 404, 429, 500, 529])
async def test_an_endpoint_that_refuses_the_owner_is_passed_over_and_named(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path, fault: int
) -> None:
    async with FakeEngine(model="foreign") as bad:
        bad.fault = InjectedFault(kind="status", status=fault)
        entries = (
            spare(bad.url, key_file, app="external/tiny/0"),
            spare(outside.url, key_file, app="external/tiny/1"),
        )
        door = await open_door(models=[starting(*entries)])
        assert (await door.post())[0] == 200
        assert (await door.post())[0] == 200
        assert (len(bad.requests), len(outside.requests)) == (1, 2)  # not asked again for seconds
        assert bad.url in door.gateway.external_trouble
        assert f"answered {fault}" in door.gateway.external_trouble
        door.gateway.table = RoutingTable(
            version=2, models={"tiny": starting(entries[1])}, keys=(door.entry,)
        )
        assert door.gateway.external_trouble == ""  # the deployment lists it no longer


@pytest.mark.parametrize(("fault", "status"), [(401, 503), (404, 503), (429, 429), (500, 500)])
async def test_the_only_endpoint_s_refusal_of_the_owner_is_none_of_the_client(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path, fault: int, status: int
) -> None:
    outside.fault = InjectedFault(kind="status", status=fault)
    door = await open_door(models=[starting(spare(outside.url, key_file))])
    assert (await door.post())[0] == status


async def test_a_fault_of_the_request_is_the_client_s(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path
) -> None:
    outside.fault = InjectedFault(kind="status", status=422)
    door = await open_door(models=[starting(spare(outside.url, key_file))])
    assert (await door.post())[0] == 422
    assert door.gateway.external_trouble == ""


async def test_an_endpoint_that_dies_in_a_stream_ends_it_with_an_error(
    open_door: OpenDoor, key_file: Path
) -> None:
    fault = InjectedFault(kind="die", after=3)
    async with FakeEngine(model="foreign", token=KEY, fault=fault) as dying:
        door = await open_door(models=[starting(spare(dying.url, key_file))])
        status, _, body = await door.post(stream=True)
    assert status == 200
    assert b"engine_lost" in body
    assert b"[DONE]" not in body


async def test_a_key_file_that_cannot_be_used_is_named_and_no_request_leaves(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key_file.chmod(0o644)
    door = await open_door(models=[starting(spare(outside.url, key_file))])
    status, _, body = await door.post()
    assert status == 503
    assert not outside.requests
    assert f"chmod 600 {key_file}" in door.gateway.external_trouble
    assert KEY not in caplog.text + body.decode() + door.gateway.external_trouble


def test_key_files(tmp_path: Path) -> None:
    def of(path: Path) -> ExternalAddress:
        return ExternalAddress(url="http://nas/v1", model="m", key_file=str(path))

    assert read_key(ExternalAddress(url="http://nas/v1", model="m")) == ""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for text, expected in (("", "has no key"), ("two\nlines", "has no key"), ("sk-\u00e4", "has no key")):
        made = tmp_path / "bad"
        made.write_text(text)
        made.chmod(0o600)
        with pytest.raises(KeyUnusable, match=expected):
            read_key(of(made))
    for path, expected in (
        (tmp_path / "none", "No such file"),
        (pipe, "is no file"),
        (tmp_path, "is no file"),
    ):
        with pytest.raises(KeyUnusable, match=expected):
            read_key(of(path))


def test_paths() -> None:
    for url, expected in {
        "http://nas": "/v1/completions",
        "http://nas:1/": "/v1/completions",
        "http://nas/v1/": "/v1/completions",
        "https://api.example.org/openai/v2": "/openai/v2/completions",
    }.items():
        assert target_of(ExternalAddress(url=url, model="m"), "/v1/completions?model=x") == expected


async def test_another_fleet_with_tls_is_an_endpoint(
    open_door: OpenDoor, outside: FakeEngine, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is verified: an authority that this machine does not know is refused, a known one accepted."""
    store = CertificateStore(GatewayTls(names=("localhost", "127.0.0.1")), tmp_path / "tls", b"secret")
    key, entry = generate("first fleet")
    key_file.write_text(key)
    model = ModelEntry(name="foreign", deployment="engine", state="ready", groups=(GroupEntry(app="app-0"),))
    table = RoutingTable(version=1, models={"foreign": model}, keys=(entry,))
    far = GatewayApp(StaticPicker([EngineEndpoint(url=outside.url, token=KEY, app="app-0")]), table=table)
    server = await serve(far, "127.0.0.1", 0, tls=store.context)
    url = server.url.replace("http://", "https://")
    try:
        for known in (False, True):
            engine_pool.tls_context.cache_clear()
            if known:
                authority = tmp_path / "ca.pem"
                authority.write_text(store.present.authority)
                monkeypatch.setenv("SSL_CERT_FILE", str(authority))
            door: Door = await open_door(models=[starting(spare(f"{url}/v1", key_file))])
            status, _, body = await door.post(stream=True)
            assert status == (200 if known else 503)
            assert body.endswith(b"data: [DONE]\n\n") == known
            assert ("certificate" in door.gateway.external_trouble.lower()) != known
    finally:
        engine_pool.tls_context.cache_clear()
        await server.aclose()
        await far.aclose()


def test_a_key_that_is_too_long_is_refused_and_not_cut(key_file: Path) -> None:
    address = ExternalAddress(url="https://outside/v1", model="m", key_file=str(key_file))
    key_file.write_text("k" * 4096)
    assert read_key(address) == "k" * 4096
    key_file.write_text("k" * 4097)
    with pytest.raises(KeyUnusable, match="longer than 4096 bytes"):
        read_key(address)
