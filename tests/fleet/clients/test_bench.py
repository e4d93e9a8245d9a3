"""A measurement over a real HTTP server on loopback that streams as the gateway does, and a controller that keeps it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import statuses
from aiohttp import web
from aiohttp.test_utils import TestServer
from open_client import OpenClient

from sparkfleet.errors import ControlError, SpecError
from sparkfleet.fleet.clients import bench as module
from sparkfleet.fleet.clients.bench import bench, others
from sparkfleet.group.report import GroupPhase, RankReport
from sparkfleet.specs.deployment import Deployment

SPEC = Deployment.model_validate({"name": "big", "model": "nvidia/Qwen3-235B-A22B-NVFP4"})
ITL_S = 0.004


class Fleet(OpenClient):
    """Session, controller and endpoint in one; `bodies` are the requests, `kept` the results."""

    def __init__(self, *reports, **fields):
        one = statuses.deployment(*reports, **fields).model_copy(update={"spec": SPEC.model_dump_json()})
        self.status = statuses.fleet(one)
        self.endpoint = self
        self.bodies, self.kept, self.open, self.most = [], [], 0, 0
        self.compiles_s = 0.0
        """Seconds that the first requests of a full length wait, four of them."""

    async def fleet(self):
        return self.status

    async def trust(self, client):
        return True

    async def keep_bench(self, name, results, who):
        self.kept.append((name, tuple(results)))

    async def _answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.open += 1
        self.most = max(self.most, self.open)
        response = web.StreamResponse()
        await response.prepare(request)
        if body["max_tokens"] > 2 and sum(one["max_tokens"] > 2 for one in self.bodies) <= 4:
            await asyncio.sleep(self.compiles_s)
        for number in range(min(12, body["max_tokens"])):
            await asyncio.sleep(0 if number == 0 else ITL_S)
            await response.write(b'data: {"choices": [{"delta": {"content": "a "}}]}\n\n')
        usage = {
            "completion_tokens": min(12, body["max_tokens"]),
            "prompt_tokens": len(body["messages"][0]["content"]) // 4,
        }
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        self.open -= 1
        return response

    @asynccontextmanager
    async def url(self, client):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        async with TestServer(app) as server:
            yield str(server.make_url("/v1"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    monkeypatch.setattr(module, "LOOK_S", 0.01)


async def test_one_alone_and_as_many_as_planned_are_measured_and_kept():
    fleet = Fleet(statuses.report())
    words = []
    found = await bench(fleet, "big", "sk-1", on_load=words.append)
    alone, together = found.measured
    assert (alone.load.concurrency, alone.rounds, together.load.concurrency, together.rounds) == (1, 3, 16, 3)
    assert fleet.most == 16
    assert 0 < alone.request_tps < 1 / ITL_S + 1, (
        "eleven tokens after the first, each 4 ms or more after another"
    )
    assert together.group_tps > together.request_tps
    assert words == [
        "3 rounds of 1 request, prompts of 2,048 tokens, answers of 256",
        "3 rounds of 16 requests at once, prompts of 2,048 tokens, answers of 256",
    ]
    ((name, results),) = fleet.kept
    assert (name, found.kept, found.disturbed) == ("big", True, "")
    assert [one.load for one in results] == [alone.load, together.load]
    assert results[0].setup == found.groups.setup
    assert (results[0].setup.model, results[0].setup.tp) == ("nvidia/Qwen3-235B-A22B-NVFP4", 2)


async def test_prompts_are_fitted_to_the_tokenizer_and_answers_have_their_full_length():
    fleet = Fleet(statuses.report())
    await bench(fleet, "big", "sk-1", concurrency=(1,))
    fitting = [body for body in fleet.bodies if body["max_tokens"] == 2]
    measured = [body for body in fleet.bodies if body["max_tokens"] == 256]
    assert (len(fitting), len(measured)) == (4, 3), "one of each kind, then the rounds"
    lengths = [len(body["messages"][0]["content"]) / 4 for body in measured]
    assert all(2000 < length < 2060 for length in lengths)
    assert all(body["ignore_eos"] for body in fleet.bodies)


async def test_a_first_burst_for_which_kernels_are_compiled_does_not_count():
    """Of two rounds the median was their mean: half of the rate, kept for further plans."""
    fleet = Fleet(statuses.report())
    fleet.compiles_s = 0.5
    found = await bench(fleet, "big", "sk-1", concurrency=(4,))
    assert found.measured[0].ttft_ms < 250


async def test_two_groups_get_twice_as_many_and_the_rate_is_of_one():
    reports = (statuses.report(0), statuses.report(1))
    fleet = Fleet(*reports, planned=2)
    found = await bench(fleet, "big", "sk-1", concurrency=(4,))
    assert fleet.most == 8
    (four,) = found.measured
    assert four.load.concurrency == 4
    assert four.group_tps < 4 / ITL_S * 12 / 11 + 1


async def test_groups_at_unlike_rungs_are_measured_and_not_kept():
    fleet = Fleet(statuses.report(0), statuses.report(1, rung=1), planned=2)
    found = await bench(fleet, "big", "sk-1", concurrency=(1,))
    assert (found.groups.rung, found.kept, fleet.kept) == (None, False, [])


async def test_a_custom_workload_gets_no_field_of_our_engines():
    fleet = Fleet(statuses.report(engine="custom"))
    await bench(fleet, "big", "sk-1", concurrency=(1,))
    assert not any("ignore_eos" in body for body in fleet.bodies)


async def test_requests_of_others_are_named_and_nothing_is_kept():
    fleet = Fleet(statuses.report(running=3))
    found = await bench(fleet, "big", "sk-1", concurrency=(1,))
    assert found.disturbed == "3 other requests for big"
    assert (found.kept, fleet.kept) == (False, [])


@pytest.mark.parametrize(
    ("fields", "state", "remedy"),
    [
        ({"phase": GroupPhase.STARTING}, "starting", "`sparkfleet describe big` shows the reason."),
        ({"phase": GroupPhase.STOPPED}, "unloaded", "`sparkfleet load big` starts it."),
    ],
)
async def test_what_does_not_serve_is_not_measured(fields, state, remedy):
    with pytest.raises(ControlError, match=f"big is {state}: there is nothing to measure") as caught:
        await bench(Fleet(statuses.report(**fields), state=state), "big", "sk-1")
    assert caught.value.do == remedy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"concurrency": (17,)}, "17 requests at once: each group serves 16"),
        ({"prompt": 20_000}, "A prompt of 20000 tokens and an answer of 256 may exceed the context of 32768"),
        ({"answer": 40_000}, "may exceed the context"),
    ],
)
async def test_loads_that_do_not_fit_are_refused_before_the_first_request(fields, message):
    fleet = Fleet(statuses.report())
    with pytest.raises(SpecError, match=message):
        await bench(fleet, "big", "sk-1", **fields)
    assert fleet.bodies == []


async def test_an_answer_that_is_too_short_is_an_error(monkeypatch):
    fleet = Fleet(statuses.report())
    with pytest.raises(ControlError, match="An answer had 1 tokens: too few to measure a rate"):
        await bench(fleet, "big", "sk-1", concurrency=(1,), answer=1)
    assert fleet.kept == []


def test_requests_beside_a_measurement():
    big = statuses.report(
        running=3, waiting=1, ranks=(RankReport(rank=0, node="spark1"), RankReport(rank=1, node="spark2"))
    )
    there = statuses.report(
        deployment="small", node="spark2", ranks=(RankReport(rank=0, node="spark2"),), running=1
    )
    away = there.model_copy(update={"node": "spark3", "ranks": (RankReport(rank=0, node="spark3"),)})

    def status(*groups):
        return statuses.fleet(statuses.deployment(*groups))

    assert others(status(big), "big", 4) == ""
    assert others(status(big), "big", 3) == "1 other request for big"
    assert others(status(big, there), "big", 4) == "requests for small on spark2"
    assert others(status(big, away), "big", 4) == ""
