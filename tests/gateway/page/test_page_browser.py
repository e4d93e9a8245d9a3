"""The page in a real browser, on a real gateway before a fake engine. Needs Debian's chromium and the `dev` extra."""

import json
import shutil
import time
from contextlib import AsyncExitStack
from importlib.resources import files

import pytest
from page_views import asleep, loaded
from static_picker import StaticPicker

from sparkfleet.engines.fake.engine import FakeEngine
from sparkfleet.engines.fake.pace import Pace
from sparkfleet.gateway.access.keys import generate
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.engine.endpoints import EngineEndpoint
from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.page.fleet_change import FleetAnswer, FleetChange, LogRequest
from sparkfleet.gateway.page.fleet_view import (
    BandView,
    DeploymentView,
    EntryView,
    EventView,
    FleetView,
    GpuView,
    GroupView,
    LinkView,
    MemoryView,
    NodeView,
    StoppedView,
)
from sparkfleet.gateway.page.page_app import PageApp
from sparkfleet.gateway.routing_table import GroupEntry, KeyLimits, ModelEntry, RoutingTable
from sparkfleet.units import GIB

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

LOADS_S = 1.0
SHOWN_MS = 5000
"""Time in which a fault is shown."""
BAND = BandView(low=14.0, mid=17.0, high=22.0, provenance="calibrated")
NASTY = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'


class Fleet:
    """Two Sparks with a deployment over both, as their controller reports them."""

    def __init__(self):
        self.away, self.lost, self.tokens = False, False, 0.0
        self.drained, self.changes, self.logs, self.refusal = False, [], [], ""
        self.group_drained = False
        self.began = time.time()
        """Time of the first event."""
        self.newer = ()
        """Events after the first one."""
        self.long = ()
        """A deployment whose names and texts are as long as they may be."""

    async def change(self, request):
        """Applies an admin's change."""
        if self.away:
            raise ConnectionError
        asked = FleetChange.model_validate_json(request)
        self.changes.append(
            (asked.verb, asked.node or asked.group or asked.deployment, asked.generation, asked.who)
        )
        if self.refusal:
            return FleetAnswer(what=self.refusal).model_dump_json()
        if asked.group is not None:
            self.group_drained = asked.verb == "drain"
        elif asked.verb in ("drain", "undrain"):
            self.drained = asked.verb == "drain"
        return FleetAnswer(done=f"{asked.verb}: done").model_dump_json()

    async def read_log(self, request):
        """The log of a rank, whose lines are hostile."""
        asked = LogRequest.model_validate_json(request)
        self.logs.append(asked)
        lines = [f"line {number} of rank {asked.rank} {NASTY}" for number in range(asked.lines)]
        return FleetAnswer(done="read", node="spark2", path="/logs/x", log="\n".join(lines)).model_dump_json()

    async def view(self):
        if self.away:
            raise ConnectionError
        self.tokens += 60
        now = time.time()
        nodes = tuple(
            NodeView(
                name=name, joined=not (self.lost and name == "spark2"), head=name == "spark1",
                drained=self.drained and name == "spark2", memory_total=122 * GIB,
                memory_available=40 * GIB, gpus=(GpuView(power_w=42.0, temperature_c=63.0, busy=0.9, clock_mhz=2400.0),),
            )
            for name in ("spark1", "spark2")
        )  # fmt: skip
        group = GroupView(
            name="tiny/g1/0", state="ready", since=now - 60, node="spark1", ranks=("spark1", "spark2"), engine="vllm",
            how="vLLM 0.32 · NVFP4", shape="spark1+spark2 · TP=2", rung=2, rungs=3, reason="fastest that fits",
            passed=(NASTY,), drained=self.group_drained, running=1, slots=4, tokens=self.tokens,
            measured={"decode_tps": 17.5, "ttft_ms": 900.0},
            memory=(MemoryView(node="spark1", bytes=71 * GIB), MemoryView(node="spark2", bytes=70 * GIB)),
            predicted={"check_decode_tps": BAND, "total_tps": BAND, "prefill_tps": BAND},
        )  # fmt: skip
        starting = GroupView(
            name="later/g1/0", state="starting", since=now - 20, node="spark2", engine="vllm", phase="loading", share=0.4,
        )  # fmt: skip
        return FleetView(
            at=now,
            fleet="home",
            sparkfleet="1",
            endpoint="http://192.168.1.11:8000/v1",
            entries=(
                EntryView(
                    node="spark2", url="http://192.168.1.12:8000/v1", reached=not self.lost, connections=3
                ),
            ),
            certificate_expires_at=now + 40 * 86400,
            nodes=nodes,
            links=(LinkView(nodes=("spark1", "spark2"), rails=2, up=1 if self.lost else 2),),
            deployments=(
                DeploymentView(name="tiny", state="ready", generation=1, since=now, groups=(group,)),
                DeploymentView(name="later", state="starting", generation=1, since=now, groups=(starting,)),
                *self.long,
            ),
            stopped=(StoppedView(name="old", generation=7, nodes=("spark1",)),),
            events=(
                *self.newer,
                EventView(
                    id=1, at=self.began, deployment="tiny", subject="tiny/g1/0", kind="ready", message=NASTY
                ),
            ),
        ).model_dump_json()


class Seen:
    """The page, what the browser complained of, and the fleet behind it."""

    def __init__(self, page, fleet, url, key, server, gateway):
        self.page, self.fleet, self.url, self.key, self.server, self.gateway = (
            page,
            fleet,
            url,
            key,
            server,
            gateway,
        )
        self.complaints, self.bytes = [], 0
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def open(self):
        began = time.perf_counter()
        await self.page.goto(self.url)
        await self.page.wait_for_selector("article h3")
        return time.perf_counter() - began

    async def log_in(self):
        if await self.page.is_hidden("#key-form"):
            await self.page.click("#key-button")
        await self.page.fill("#key", self.key)
        await self.page.keyboard.press("Enter")

    async def violations(self):
        """Findings of axe: its rules with the elements that break them."""
        await self.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
        found = json.loads(
            await self.page.evaluate("axe.run().then((found) => JSON.stringify(found.violations))")
        )
        return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found]

    async def manage(self):
        """Open it with an admin key."""
        await self.open()
        self.key = self.admin
        await self.log_in()
        await self.page.wait_for_selector("#manage-list button", timeout=SHOWN_MS)

    async def says(self, selector, words, limit_ms=SHOWN_MS):
        script = "([selector, words]) => document.querySelector(selector)?.textContent.includes(words)"
        await self.page.wait_for_function(script, arg=[selector, words], timeout=limit_ms)


@pytest.fixture
async def seen():
    from playwright.async_api import async_playwright

    fleet, (key, entry) = Fleet(), generate("me")
    admin, admin_entry = generate("boss", KeyLimits(admin=True))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine(model="tiny", pace=Pace(), token="t"))
        model = ModelEntry(name="tiny", deployment="group", state="ready", groups=(GroupEntry(app="a"),))
        later = ModelEntry(name="later", deployment="group", state="starting", ready_at=time.time() + 80)
        table = RoutingTable(version=1, models={"tiny": model, "later": later}, keys=(entry, admin_entry))
        target = EngineEndpoint(url=engine.url, token="t", group="g", app="a")
        gateway = GatewayApp(
            StaticPicker([target]), table=table, page=PageApp(fleet.view, fleet.change, fleet.read_log)
        )
        stack.push_async_callback(gateway.aclose)
        server = await serve(gateway, "127.0.0.1", 0)
        stack.push_async_callback(server.aclose)
        playwright = await stack.enter_async_context(async_playwright())
        chromium = shutil.which("chromium")
        assert chromium, "apt-get install chromium"
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stack.push_async_callback(browser.close)
        seen = Seen(await browser.new_page(), fleet, server.url + "/", key, server, gateway)
        seen.engine, seen.admin = engine, admin
        yield seen


async def test_it_loads_within_a_second_and_shows_the_fleet(seen):
    await seen.open()  # the browser itself starts
    took = await seen.open()
    assert took < LOADS_S
    await seen.says("#summary", "2 nodes · 1 of 2 deployments ready · requests: 1 running, 0 waiting")
    picture = await seen.page.get_attribute("#picture svg", "aria-label")
    assert picture == "spark1 is up; spark2 is up; spark1 to spark2: 2 of 2 rails up"
    await seen.says("#picture", "tiny rank 1, see spark1")
    await seen.says("#deployments", "measured 17.5 tok/s; predicted 17.0 (14.0 to 22.0), calibrated")
    await seen.says("#summary", "tok/s")
    assert seen.complaints == []


async def test_dials_show_decode_and_prefill_before_their_predictions(seen):
    await seen.open()
    label = "() => [...document.querySelectorAll('svg.dial')].map((one) => one.getAttribute('aria-label')).join('; ')"
    assert "prefill, last requests: not measured yet, predicted 14.0 to 22.0" in await seen.page.evaluate(
        label
    )
    await seen.log_in()
    await seen.page.click("#run")
    await seen.says("#answers", "1 of 1 answered", limit_ms=20_000)
    measured = r"/decode now: [1-9][\d.]* tok.s, predicted 14.0 to 22.0 tok.s; prefill, last requests: [1-9]/"
    await seen.page.wait_for_function(f"() => {measured}.test(({label})())", timeout=2 * SHOWN_MS)
    assert seen.complaints == []


async def test_a_start_shows_its_phase_and_its_expected_end(seen):
    await seen.open()
    await seen.says("#deployments", "loading 40 %, 20 s in this state")
    await seen.says("#deployments", "Expected to be ready in")
    await seen.says("#deployments", "as its last start")


async def test_several_deployments_answer_side_by_side_and_one_that_cannot_is_named(seen):
    await seen.open()
    await seen.log_in()
    for box in await seen.page.query_selector_all("#models input"):
        await box.check()
    await seen.page.fill("#count", "2")
    await seen.page.click("#run")
    await seen.says("#answers", "2 of 2 answered", limit_ms=20_000)
    assert await seen.page.locator("#answers article").count() == 2
    await seen.says("#answers", "0 of 2 answered · failed: ")


async def test_without_its_engine_the_prompt_fails_and_the_rest_stays(seen):
    await seen.open()
    await seen.log_in()
    await seen.engine.__aexit__(None, None, None)
    await seen.page.click("#run")
    await seen.says("#answers", "0 of 1 answered · failed: ", limit_ms=20_000)
    await seen.says("#deployments", "tiny")
    await seen.says("#picture", "tiny rank 1, see spark1")


async def test_what_is_selected_stays_selected(seen):
    await seen.open()
    await seen.page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('#events td:last-child'))"
    )
    event = EventView(
        id=2, at=seen.fleet.began + 1, deployment="tiny", subject="", kind="slow", message="newer"
    )
    seen.fleet.newer = (event,)
    await seen.says("#events tr:first-child", "slow: newer")
    await seen.page.wait_for_timeout(2500)  # the page is drawn again meanwhile
    assert NASTY in await seen.page.evaluate("getSelection().toString()")
    seen.fleet.newer = ()
    await seen.page.locator("#events tr:nth-child(2)").wait_for(state="detached")
    assert NASTY in await seen.page.evaluate("getSelection().toString()")


async def test_an_address_of_the_endpoint_is_copied(seen):
    await seen.open()
    await seen.says("#endpoint", "spark2 · 3 connections")
    await seen.page.click('[id="copy-http://192.168.1.12:8000/v1"]')
    await seen.says("#copied", "http://192.168.1.12:8000/v1")
    seen.fleet.lost = True
    await seen.says("#endpoint", "spark2 · not reached")
    assert seen.complaints == []


async def test_nothing_that_a_fleet_reports_is_markup(seen):
    await seen.open()
    await seen.says("#events", NASTY)
    assert await seen.page.evaluate("window.hurt") is None
    assert await seen.page.locator("#events img, #deployments img").count() == 0
    assert seen.complaints == []


async def test_a_fault_is_shown_within_five_seconds(seen):
    await seen.open()
    seen.fleet.lost = True
    await seen.says("#summary", "1 gone")
    await seen.says("#picture", "gone: Ray does not answer")
    await seen.says("#picture", "1 of 2 rails")


async def test_a_prompt_is_answered_at_a_concurrency_by_keyboard_alone(seen):
    await seen.open()
    await seen.page.fill("#count", "3")
    await seen.page.focus("#prompt")
    await seen.page.keyboard.press("Control+Enter")
    await seen.says("#trouble", "A prompt needs an API key")
    assert await seen.page.evaluate("document.activeElement.id") == "key"
    await seen.log_in()
    await seen.page.focus("#prompt")
    await seen.page.keyboard.press("Control+Enter")
    await seen.says("#answers", "3 of 3 answered", limit_ms=20_000)
    assert (await seen.page.inner_text("#answers pre")).strip()
    await seen.says("#requests", "tiny")
    assert await seen.page.locator("#requests tr").count() == 3


async def test_a_wrong_key_is_named_and_can_be_forgotten(seen):
    await seen.open()
    seen.key = "sk-sf-wrong"
    await seen.log_in()
    await seen.says("#trouble", "This API key is not valid.")
    await seen.page.click("#key-forget")
    await seen.page.wait_for_selector("#trouble", state="hidden", timeout=SHOWN_MS)


async def test_without_its_controller_it_keeps_what_it_knew(seen):
    await seen.open()
    seen.fleet.away = True
    await seen.says("#trouble", "The controller does not answer")
    await seen.says("#deployments", "tiny")
    seen.fleet.away = False
    await seen.page.wait_for_selector("#trouble", state="hidden", timeout=SHOWN_MS)


async def test_without_its_endpoint_it_keeps_what_it_knew(seen):
    await seen.open()
    await seen.server.aclose()
    await seen.says("#trouble", "The endpoint does not answer", limit_ms=2 * SHOWN_MS)
    await seen.says("#deployments", "tiny")


async def test_only_an_admin_key_shows_what_changes_the_fleet(seen):
    await seen.open()
    assert await seen.page.is_hidden("#manage")
    await seen.log_in()
    await seen.says("#summary", "2 nodes")
    assert await seen.page.is_hidden("#manage")
    seen.key = seen.admin
    await seen.log_in()
    await seen.page.wait_for_selector("#manage", timeout=SHOWN_MS)
    await seen.page.click("#key-button")
    await seen.page.click("#key-forget")
    await seen.page.wait_for_selector("#manage", state="hidden", timeout=SHOWN_MS)
    assert seen.fleet.changes == []


async def test_a_change_is_confirmed_with_its_consequence_and_carried_out(seen):
    await seen.manage()
    await seen.page.click("#drain-spark2")
    await seen.says("#confirm-means", "What runs there stays: tiny, later")
    await seen.says("#confirm-instead", "sparkfleet drain spark2")
    await seen.page.keyboard.press("Escape")
    assert seen.fleet.changes == []
    await seen.page.click("#drain-spark2")
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", "drain: done")
    await seen.page.wait_for_selector("#undrain-spark2", timeout=SHOWN_MS)
    await seen.says("#picture", "spark2 · drained")
    assert seen.fleet.changes == [("drain", "spark2", None, "boss (page)")]
    assert seen.complaints == []


async def test_a_group_is_drained_with_what_that_means_and_brought_back(seen):
    await seen.manage()
    await seen.page.click('[id="drain-tiny/g1/0"]')
    await seen.says("#confirm-means", "its engine goes on, and the 1 that run there end")
    await seen.says("#confirm-means", "No other group of tiny serves")
    await seen.page.click("#confirm-yes")
    await seen.page.click('[id="undrain-tiny/g1/0"]')
    await seen.page.click("#confirm-yes")
    await seen.page.wait_for_selector('[id="drain-tiny/g1/0"]', timeout=SHOWN_MS)
    assert seen.fleet.changes == [
        ("drain", "tiny/g1/0", None, "boss (page)"),
        ("undrain", "tiny/g1/0", None, "boss (page)"),
    ]
    assert seen.complaints == []


@pytest.mark.parametrize(
    ("button", "words", "change"),
    [
        (
            "#stop-tiny",
            "the 1 that run may end first, for at most 10 min. Generation 1 is kept",
            ("stop", "tiny", 1),
        ),
        ("#restart-tiny", "Every engine of tiny on spark1, spark2 starts again", ("restart", "tiny", 1)),
        ("#start-old", "starts with the plan of generation 7", ("start", "old", 7)),
    ],
)
async def test_a_deployment_is_changed_by_keyboard_alone(seen, button, words, change):
    await seen.manage()
    await seen.page.focus(button)
    await seen.page.wait_for_timeout(2000)  # the table is drawn again meanwhile, and the focus stays
    await seen.page.keyboard.press("Enter")
    await seen.says("#confirm-means", words)
    assert await seen.page.evaluate("document.activeElement.id") == "confirm-no"
    await seen.page.keyboard.press("Tab")
    await seen.page.keyboard.press("Enter")
    await seen.says("#manage-result", f"{change[0]}: done")
    assert seen.fleet.changes == [(*change, "boss (page)")]
    await seen.page.wait_for_timeout(2000)
    assert f"#{await seen.page.evaluate('document.activeElement.id')}" == button


@pytest.mark.parametrize(
    ("button", "words", "change"),
    [
        ("#load-pilot", "If memory does not hold both, coder ends for it", ("load", "pilot", 4)),
        ("#unload-coder", "The request in flight ends first, for at most 10 min", ("unload", "coder", 2)),
    ],
)
async def test_one_on_demand_is_loaded_and_unloaded_by_keyboard_alone(seen, button, words, change):
    seen.fleet.long = (asleep("pilot", start_s=260.0), loaded("coder", in_flight=1))
    await seen.manage()
    await seen.page.focus(button)
    await seen.page.keyboard.press("Enter")
    await seen.says("#confirm-means", words)
    assert await seen.page.evaluate("document.activeElement.id") == "confirm-no"
    assert await seen.violations() == []
    await seen.page.keyboard.press("Escape")
    assert seen.fleet.changes == []
    await seen.page.keyboard.press("Enter")
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", f"{change[0]}: done")
    assert seen.fleet.changes == [(*change, "boss (page)")]
    seen.fleet.refusal = "pilot did not start the last time."
    await seen.page.click(button)
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", "pilot did not start the last time.")
    assert seen.complaints == [
        "Failed to load resource: the server responded with a status of 409 (Conflict)"
    ]


async def test_a_confirmation_that_is_opened_again_before_its_end_was_handled_is_sent(seen):
    """A browser reports the end of a dialog later: that of the first one was taken for that of the second."""
    await seen.manage()
    again = """() => {
        document.getElementById("stop-tiny").click();
        document.getElementById("confirm-no").click();
        document.getElementById("restart-tiny").click();
    }"""
    await seen.page.evaluate(again)
    await seen.page.wait_for_timeout(200)
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", "restart: done")
    assert seen.fleet.changes == [("restart", "tiny", 1, "boss (page)")]


async def test_the_boxes_of_nodes_have_what_is_unloaded_in_letters_that_can_be_read(seen):
    """The box had the colour of its letters."""
    seen.fleet.long = (asleep("pilot"), asleep("eyes", waiting_since=time.time() - 42))
    await seen.open()
    await seen.says("#picture", "eyes · waits to start")
    await seen.says("#picture", "1 unloaded, on demand")
    colours = "() => ['.chip.soft', '.chip.soft + text'].map((one) => getComputedStyle(document.querySelector(one)).fill)"
    box, letters = await seen.page.evaluate(colours)
    assert box != letters


async def test_a_refused_change_and_an_absent_controller_are_named(seen):
    await seen.manage()
    seen.fleet.refusal = "tiny is at generation 2."
    await seen.page.click("#stop-tiny")
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", "tiny is at generation 2.")
    seen.fleet.away = True
    await seen.page.click("#stop-tiny")
    await seen.page.click("#confirm-yes")
    await seen.says("#manage-result", "The controller does not answer.")
    await seen.says("#trouble", "The controller does not answer")
    await seen.says("#deployments", "tiny")


async def test_the_log_of_any_rank_is_shown_as_text(seen):
    await seen.manage()
    await seen.page.select_option("#log-rank", "tiny 0 1")
    await seen.page.fill("#log-lines", "3")
    await seen.page.click("#log-form button")
    await seen.says("#log-place", "/logs/x on spark2")
    await seen.says("#log", f"line 2 of rank 1 {NASTY}")
    assert (seen.fleet.logs[-1].rank, seen.fleet.logs[-1].lines) == (1, 3)
    assert await seen.page.locator("#log *").count() == 0
    assert await seen.page.evaluate("window.hurt") is None
    before = len(seen.fleet.logs)
    await seen.page.check("#log-follow")
    await seen.page.wait_for_timeout(4500)
    assert len(seen.fleet.logs) - before >= 2
    await seen.page.uncheck("#log-follow")
    assert seen.complaints == []


async def test_texts_are_shown_only_after_an_admin_switched_that_on(seen):
    await seen.manage()
    await seen.page.click("#run")
    await seen.says("#answers", "1 of 1 answered", limit_ms=20_000)
    assert await seen.page.is_hidden("#text-head")
    await seen.page.click("#capture")
    await seen.says("#confirm-means", "of every prompt and answer at this endpoint")
    await seen.page.click("#confirm-yes")
    await seen.says("#capture-note", "admin keys see the beginning of prompts and answers")
    await seen.page.click("#run")
    await seen.says("#requests", "Say hello in one sentence. → the spark hums", limit_ms=20_000)
    await seen.page.click("#capture")
    await seen.page.wait_for_selector("#text-head", state="hidden", timeout=SHOWN_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_accessible(seen, scheme):
    await seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await seen.open()
    await seen.page.click("#key-button")
    assert await seen.violations() == []
    await seen.page.click("#key-button")
    await seen.manage()
    await seen.page.click("#log-form button")
    await seen.says("#log-place", "/logs/x on spark2")
    assert await seen.violations() == []
    await seen.page.click("#stop-tiny")
    assert await seen.violations() == []


@pytest.mark.parametrize("width", [320, 360, 768, 1600, 2560])
async def test_it_fits_every_width(seen, width):
    long = DeploymentView(name="x" * 63, state="failed", generation=1, since=1.0, detail="y" * 200)
    waits = asleep("w" * 63, waiting_since=time.time() - 42, loaded_by="b" * 63)
    seen.fleet.long = (long, waits, loaded("v" * 63, in_flight=1))
    await seen.page.set_viewport_size({"width": width, "height": 800})
    await seen.manage()
    assert not await seen.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    broken = "() => [...document.querySelectorAll('#manage-list button')].filter((one) => one.offsetHeight > 40).length"
    assert await seen.page.evaluate(broken) == 0, "a button's word was broken in two"
