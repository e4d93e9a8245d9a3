import asyncio
import json
import sqlite3
import time

import aiohttp
import pytest
from api_values import TOKEN, client, request
from control_values import deployment, plan
from controller_world import ADDRESS, report
from predicted_plan import predict
from prometheus_client import generate_latest

from sparkfleet.controlplane.api.api_models import API_HEADER, API_VERSION, ApplyRequest
from sparkfleet.controlplane.api.client import answering
from sparkfleet.controlplane.api.client_errors import not_working
from sparkfleet.controlplane.state.tables.bench_table import BenchLoad, BenchResult, bench_setup_of
from sparkfleet.controlplane.store_safety import opening
from sparkfleet.errors import ControlError
from sparkfleet.gateway.report import FormerUsage, GatewayReport, KeyUsage
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.group.report import GroupPhase


async def test_apply_status_events_delete(served):
    async with client(served) as fleet:
        assert await fleet.apply(request()) == (1, True)
        assert await fleet.apply(request()) == (1, False)
        assert (await fleet.fleet()).deployments[0].name == "tiny"
        assert [event.kind for event in await fleet.events(0)] == ["wanted"]
        await fleet.delete("tiny", "me")
        assert (await fleet.fleet()).deployments == ()
        with pytest.raises(ControlError, match='no deployment "tiny"'):
            await fleet.delete("tiny", "me")


async def test_measured_speeds_are_kept_with_an_event_and_once(served):
    result = BenchResult(
        setup=bench_setup_of(plan().groups[0].choice.candidate),
        load=BenchLoad(content="mixed", prompt=2048, answer=256, concurrency=1),
        ttft_ms=412.4,
        request_tps=48.23,
        group_tps=48.23,
    )
    async with client(served) as fleet:
        with pytest.raises(ControlError, match='There is no deployment "tiny"'):
            await fleet.keep_bench("tiny", [result], "me")
        await fleet.apply(request())
        await fleet.keep_bench("tiny", [result], "me")
        (kept,) = (await fleet.fleet()).bench
        assert kept == result.model_copy(update={"at": kept.at})
        assert kept.at > 0
        event = (await fleet.events(0))[-1]
        assert (event.kind, event.deployment) == ("bench", "tiny")
        assert event.message == "measured by me: alone: TTFT 412 ms, 48.2 tok/s for one user"
        await fleet.delete("tiny", "me")
        assert (await fleet.fleet()).bench == (kept,), "what is known of a setup is not its deployment's"


async def test_no_answer_has_the_value_of_a_variable_and_the_same_again_is_no_change(served):
    env = {"HF_TOKEN": "hf_0123456789abcdef", "NCCL_DEBUG": "INFO"}
    wanted = ApplyRequest(spec=deployment(env=env), plan=plan(env=tuple(env.items())), who="me")
    async with client(served) as fleet:
        assert await fleet.apply(wanted) == (1, True)
        assert await fleet.apply(wanted) == (1, False)
        (spec,) = await fleet.sealed([wanted.spec])
        status, history = await fleet.fleet(), await fleet.history("tiny")
        assert status.deployments[0].spec == spec.model_dump_json()
        assert history[0].spec == spec
        assert "hf_0" not in status.model_dump_json() + history[0].model_dump_json() + spec.model_dump_json()
        assert spec.env["NCCL_DEBUG"] == "INFO"
        assert await fleet.sealed([spec]) == (spec,)
        with pytest.raises(ControlError, match="cannot be opened"):
            await fleet.sealed([deployment(env={"A": "1", "HF_TOKEN": "sealed:1:AAAA"})])


async def test_a_plan_with_a_prediction_is_another_generation_and_its_measurement_is_compared(served):
    """As `test_alerts.py` does it to a fake engine, for which the planner predicts nothing."""
    async with client(served) as fleet:
        env = {"FAKE_ITL_MS": "120"}
        wanted = ApplyRequest(spec=deployment(env=env), plan=plan(env=tuple(env.items())), who="me")
        await fleet.apply(wanted)
        assert await predict(fleet, "tiny", 20.0, 80.0) == 2
        await served.controller.reconcile()
        measured = {"decode_tps": 8.3, "ttft_ms": 5.0}
        await served.controller.intake.report(report(2, phase=GroupPhase.READY, measured=measured, running=4))
        page = generate_latest(served.metrics.registry).decode()
        first, second = await fleet.history("tiny")
        assert first.spec == second.spec
        assert first.plan.groups[0].ladder[0].candidate == second.plan.groups[0].ladder[0].candidate
    at = 'deployment="tiny",group="tiny/g2/0"'
    low = f'bound="low",{at}'
    for line in (
        f"sparkfleet_measured_decode_tokens_per_second{{{at}}} 8.3",
        f"sparkfleet_predicted_check_decode_tokens_per_second{{{low}}} 20.0",
        f"sparkfleet_predicted_total_tokens_per_second{{{low}}} 80.0",
        f'sparkfleet_group_state{{{at},state="ready"}} 1.0',
        f"sparkfleet_group_requests_running{{{at}}} 4.0",
        f"sparkfleet_group_slots{{{at}}} 4.0",
    ):
        assert line in page


async def test_a_plan_that_another_apply_has_overtaken_is_refused_with_the_difference(served):
    async with client(served) as fleet:
        await fleet.apply(request().model_copy(update={"base": 0}))
        other = ApplyRequest(spec=deployment(), plan=plan(concurrency=8), who="anna@lab", base=1)
        assert await fleet.apply(other) == (2, True)
        assert await fleet.apply(other) == (2, False), "repeated after a lost answer"
        with pytest.raises(
            ControlError, match="is at generation 2, the plan was made from generation 1"
        ) as caught:
            await fleet.apply(request(concurrency=2).model_copy(update={"base": 1}))
        assert "Generation 2 by anna@lab, " in caught.value.means
        assert "plan.concurrency: 4 → 8" in caught.value.means
        await fleet.delete("tiny", "bert")
        with pytest.raises(ControlError, match="was deleted after this plan was made") as caught:
            await fleet.apply(request(concurrency=2).model_copy(update={"base": 2}))
        assert "Deleted by bert, " in caught.value.means
    assert served.store.deployments.desired() == {}


@pytest.mark.parametrize("theirs", [{}, {API_HEADER: "99"}])
@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/deployments/tiny"), ("POST", "/v1/keys")])
async def test_a_command_with_another_api_changes_nothing_but_may_read_and_stop(served, method, path, theirs):
    headers = {"authorization": f"Bearer {TOKEN}", **theirs}
    body = request().model_dump_json() if method == "PUT" else '{"name": "laptop"}'
    async with aiohttp.ClientSession(served.url, headers=headers) as session:
        async with session.request(method, path, data=body) as response:
            told = (await response.json())["error"]
            assert response.status == 409
        async with session.get("/v1/fleet") as response:
            assert (response.status, response.headers[API_HEADER]) == (200, str(API_VERSION))
        async with session.post("/v1/stop") as response:
            assert response.status == 200
    assert "Nothing was changed" in told["means"]
    assert "sparkfleet" in told["do"]
    assert (served.store.deployments.desired(), served.store.keys.all()) == ({}, ())


async def test_a_stop_is_taken_back(served):
    async with client(served) as fleet:
        await fleet.stop()
        assert (await fleet.fleet()).paused
        await fleet.resume()
        assert not (await fleet.fleet()).paused


async def test_more_events_than_an_answer_has_are_all_told(served):
    for number in range(2100):
        served.store.events.record("tiny", 1, "tiny/g1/0", "ready", str(number))
    async with client(served) as fleet:
        told = await fleet.all_events("tiny")
    assert [event.message for event in told][-3:] == ["2097", "2098", "2099"]
    assert len(told) == 2100
    assert len({event.id for event in told}) == 2100


async def test_keys(served):
    async with client(served) as fleet:
        made = await fleet.create_key("laptop")
        assert made["key"].startswith("sk-sf-")
        (listed,) = await fleet.keys()
        assert (listed.id, listed.name, listed.used, listed.may_use) == (made["id"], "laptop", None, ())
        for name in ("", ".", "two words", "a\nb", "\x1b[31m", "x" * 64):
            with pytest.raises(ControlError, match="cannot name a key"):
                await fleet.create_key(name)
        assert (await fleet.revoke_key(made["id"]))["name"] == "laptop"
        assert await fleet.keys() == []


@pytest.mark.parametrize("call", ["create", "rotate"])
async def test_a_key_is_not_rotated_twice_by_one_command(served, monkeypatch, call):
    """The answer to the first request was lost: the second one ended the old text at once, in spite of its grace."""
    made = []
    async with client(served, patience_s=5.0) as fleet:
        await fleet.create_key("ci")
        real = fleet._once

        async def once(method, *rest):
            answer = await real(method, *rest)
            if method == "POST":
                made.append(answer["key"])
                raise ConnectionResetError("the controller ended")
            return answer

        monkeypatch.setattr(fleet, "_once", once)
        asked = fleet.create_key("other") if call == "create" else fleet.rotate_key("ci", 3600.0)
        with pytest.raises(ControlError, match="answer was lost"):
            await asked
    assert len(made) == 1


async def test_keys_are_limited_and_rotated(served):
    async with client(served) as fleet:
        made = await fleet.create_key("ci", KeyLimits(concurrent=2))
        assert (await fleet.keys())[0].limits == KeyLimits(concurrent=2)
        await fleet.limit_key("ci", KeyLimits(tokens_per_minute=1000))
        turned = await fleet.rotate_key("ci", 3600.0)
        assert turned["key"].startswith("sk-sf-")
        assert turned["key"] != made["key"]
        (listed,) = await fleet.keys()
        assert (listed.id, listed.limits) == (made["id"], KeyLimits(tokens_per_minute=1000))
        assert 3500 < listed.former_until - time.time() < 3700
        for call in (fleet.limit_key("other", KeyLimits()), fleet.rotate_key("other", 0.0)):
            with pytest.raises(ControlError, match='no key "other"'):
                await call


async def test_usage_of_gateways_is_read(served):
    counted = KeyUsage(key="ci", model="tiny", requests=3, uncounted=1, input=30, output=6)
    report = GatewayReport(
        replica="g1", url="http://a:1", metrics_url="http://a:2/metrics", at=0.0, usage=(counted,)
    )
    async with client(served) as fleet:
        assert await fleet.usage(7) == []
        await served.controller.intake.register_gateway(report)
        more = counted.model_copy(update={"requests": 4})
        await served.controller.intake.register_gateway(report.model_copy(update={"usage": (more,)}))
        (row,) = await fleet.usage(7)  # what was reported since the last write counts
        assert (row.key, row.model, row.requests, row.uncounted, row.input, row.output) == (
            "ci",
            "tiny",
            4,
            1,
            30,
            6,
        )
    stored = served.store.usage.last_days(1)
    other = report.model_copy(update={"replica": "g2", "usage": (counted,)})
    await served.controller.intake.register_gateway(other)
    assert [one.requests for one in served.store.usage.last_days(1)] == [stored[0].requests + 3]


async def test_usage_that_a_killed_gateway_left_is_stored_once_and_its_broken_file_named(served):
    left = FormerUsage(replica="g1", usage=(KeyUsage(key="ci", model="tiny", requests=3),))
    report = GatewayReport(
        replica="g2",
        url="http://a:1",
        metrics_url="http://a:2",
        at=0.0,
        former=(left,),
        usage_trouble="x is broken",
    )
    assert await served.controller.intake.register_gateway(report)
    assert not await served.controller.intake.register_gateway(report)  # taken, and stored later
    assert [one.requests for one in served.store.usage.last_days(1)] == [3]
    assert [one.message for one in served.store.events.read() if "x is broken" in one.message] == [
        "gateway listening on http://a:1; x is broken"
    ]


async def test_without_the_token_nothing_is_told_or_done(served):
    async with client(served, token="wrong") as fleet:
        with pytest.raises(ControlError, match="token"):
            await fleet.apply(request())
    assert served.store.deployments.desired() == {}


async def test_metrics_and_targets_need_no_token(served):
    async with aiohttp.ClientSession() as session:
        async with session.get(served.url + "/metrics") as response:
            assert "sparkfleet_build_info" in await response.text()
        async with session.get(served.url + "/targets") as response:
            (own,) = json.loads(await response.text())
    assert own["targets"] == [served.url.removeprefix("http://")]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"spec": 1}', b"\xff"])
async def test_a_request_that_is_not_understood_is_a_400(served, body):
    headers = {"authorization": f"Bearer {TOKEN}", API_HEADER: str(API_VERSION)}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.put(served.url + "/v1/deployments/tiny", data=body) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["what"]


@pytest.mark.parametrize("number", ["x", "-1", "9" * 19, "9" * 5000])
async def test_a_number_that_is_none(served, number):
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(served.url + "/v1/events?after=" + number) as response,
    ):
        assert response.status == 409


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"authorization: Bearer \xff\xfe", b"401"),
        (b"authorization: Bearer " + b"a" * 20_000, b"400"),
        (b"authorization: Bearer a\x00b", b"400"),
        (b"content-length: 99999999999", b"401"),
    ],
)
async def test_headers_of_any_bytes_and_any_size_fail_nothing(served, header, status, caplog):
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/fleet HTTP/1.1\r\nhost: 127.0.0.1\r\n" + header + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    assert answer.split()[1] == status
    assert not any("failed" in record.message for record in caplog.records)


async def test_a_controller_that_does_not_work_says_why(served):
    async with client(served) as fleet:
        address = fleet.address
    assert not_working((await answering(address, TOKEN)).trouble) == ""
    await served.controller.failures.begin(OSError("Serve does not answer"))
    words = not_working((await answering(address, TOKEN)).trouble)
    assert words.startswith("The controller does not work: its work failed: OSError('Serve does not answer')")


async def test_what_fails_in_the_controller_is_told_in_its_own_form(served):
    served.store.close()
    async with client(served) as fleet:
        with pytest.raises(ControlError, match="The controller failed: ProgrammingError") as caught:
            await fleet.apply(request())
        assert "disk" in caught.value.means
        with pytest.raises(ControlError, match="POST /v1/moods: Not Found"):
            await fleet.call("POST", "/v1/moods")


async def test_a_change_on_a_full_disk_has_the_words_of_the_store_and_changes_nothing(served, monkeypatch):
    """`delete` printed "OperationalError('database or disk is full')", and no command."""

    async def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(served.controller.commands, "remove", full)
    monkeypatch.setattr(opening, "is_full", lambda path: True)
    async with client(served) as fleet:
        with pytest.raises(ControlError, match=r"its disk is full \(database or disk is full\)") as caught:
            await fleet.delete("tiny", "me")
    assert str(served.store.path) in caught.value.what
    assert caught.value.do.startswith("Free space on the head's disk")


@pytest.mark.parametrize("path", ["/metrics", "/targets"])
async def test_a_page_in_a_browser_does_not_read_open_pages_under_its_own_name(served, path):
    port = served.url.rsplit(":", 1)[1]
    async with aiohttp.ClientSession() as session:
        for host, status in (
            (f"evil.example:{port}", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
            (f"localhost:{port}", 200),
            (f"[::1]:{port}", 200),
            (f"10.0.0.1:{port}", 200),
        ):
            async with session.get(served.url + path, headers={"host": host}) as response:
                assert response.status == status, host


async def test_a_node_is_drained_and_used_again(served):
    await served.controller.watch.look()
    async with client(served) as fleet:
        with pytest.raises(ControlError, match='There is no node "moon"'):
            await fleet.drain("moon", "me")
        node = (await fleet.fleet()).nodes[0].name
        await fleet.drain(node, "me@desk")
        await fleet.drain(node, "other")
        assert [(one.node, one.who) for one in (await fleet.fleet()).drained] == [(node, "me@desk")]
        assert [event.message for event in await fleet.all_events() if event.kind == "drain"] == [
            f"{node} is drained by me@desk"
        ]
        await fleet.undrain(node, "me")
        assert (await fleet.fleet()).drained == ()
        with pytest.raises(ControlError, match=f"{node} is not drained"):
            await fleet.undrain(node, "me")


async def test_a_group_is_drained_and_gets_requests_again(served):
    await served.put()
    async with client(served) as fleet:
        with pytest.raises(ControlError, match="There is no group tiny/g9/0"):
            await fleet.drain_group("tiny/g9/0", "me")
        with pytest.raises(ControlError, match='"moon" is no group\'s name'):
            await fleet.drain_group("moon", "me")
        assert await fleet.drain_group("tiny/g1/0", "me@desk") == ()
        assert [one.name for one in (await fleet.fleet()).drained_groups] == ["tiny/g1/0"]
        assert await fleet.undrain_group("tiny/g1/0", "me") == ()
        with pytest.raises(ControlError, match="tiny/g1/0 is not drained"):
            await fleet.undrain_group("tiny/g1/0", "me")


def gateway(replica="g-1", trouble=""):
    return GatewayReport(
        replica=replica, url="http://127.0.0.1:8000", metrics_url="", at=1.0, trouble=trouble
    )


async def test_the_endpoint_moves_once_every_gateway_has_the_new_table(served):
    """A gateway that reads the table has moved by the time that it asks for the next one."""
    await served.controller.round()
    await served.controller.intake.register_gateway(gateway())
    wanted = ADDRESS.model_copy(update={"gateway_host": "0.0.0.0", "gateway_port": 9000})
    first = await served.controller.gateways.table(0, replica="g-1")
    assert first.listening == ADDRESS.listening
    async with client(served) as fleet:
        moving = asyncio.create_task(fleet.listen(wanted, "me@desk"))
        table = await served.controller.gateways.table(first.version, replica="g-1")
        assert table.listening == wanted.listening
        await asyncio.sleep(0)
        assert not moving.done()
        asking = asyncio.create_task(served.controller.gateways.table(table.version, replica="g-1"))
        assert await moving == ()
        asking.cancel()
        status = await fleet.fleet()
        assert (status.endpoint, status.listening) == (wanted.endpoint, wanted.listening)
        assert [e.message for e in await fleet.all_events() if "me@desk" in e.message] == [
            f"the endpoint is {wanted.endpoint} now, by me@desk"
        ]
        assert await fleet.listen(wanted, "me@desk") == ()


async def test_an_endpoint_at_which_no_gateway_can_listen_stays_where_it_is(served, monkeypatch):
    monkeypatch.setattr("sparkfleet.controlplane.gateway_control.CONFIRM_S", 0.1)
    await served.controller.intake.register_gateway(gateway(trouble="Port 9000 on 127.0.0.1 is used."))
    async with client(served) as fleet:
        with pytest.raises(ControlError, match="Port 9000") as caught:
            await fleet.listen(ADDRESS.model_copy(update={"gateway_port": 9000}), "me")
        wanted = ADDRESS.model_copy(update={"gateway_port": 9000})
        tries = [asyncio.create_task(served.controller.gateways.listen(wanted, "me")) for _ in range(2)]
        refused = await asyncio.gather(*tries, return_exceptions=True)  # the second one is not "done already"
        assert ["Port 9000" in str(one) for one in refused] == [True, True]
        assert "listens at http://127.0.0.1:8000, as before" in caught.value.means
        assert (await fleet.fleet()).listening == ADDRESS.listening
