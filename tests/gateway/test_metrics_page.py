import asyncio
from pathlib import Path

import aiohttp
import pytest

from sparkfleet.gateway.http.http_server import serve
from sparkfleet.gateway.metrics_page import metrics_app, serve_metrics
from sparkfleet.telemetry.metrics import GatewayMetrics


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 404)])
async def test_the_page(path: str, status: int) -> None:
    metrics = GatewayMetrics()
    metrics.retries[("tiny",)] += 2
    server = await serve(metrics_app(metrics.registry), "127.0.0.1", 0)
    async with aiohttp.request("GET", server.url + path) as answer:
        text = await answer.text()
        assert answer.status == status
    assert ('sparkfleet_retries_total{model="tiny"} 2.0' in text) == (status == 200)
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain; version=")
    await server.aclose()


async def test_the_page_keeps_its_address_at_every_start(tmp_path: Path) -> None:
    note, registry = tmp_path / "metrics.port", GatewayMetrics().registry
    first = await serve_metrics(registry, note)
    assert note.read_text() == f"{first.port}\n"
    beside = await serve_metrics(registry, note)
    assert beside.port != first.port, "its predecessor still drains"
    await first.aclose()
    again = await serve_metrics(registry, note)
    assert again.port == first.port
    for server in (beside, again):
        await server.aclose()


async def test_users_of_the_head_cannot_take_the_files_of_the_gateway(tmp_path: Path) -> None:
    server = await serve_metrics(GatewayMetrics().registry, tmp_path / "metrics.port")
    held = [await asyncio.open_connection(server.host, server.port) for _ in range(33)]
    async with asyncio.timeout(5):
        assert b"too_many_connections" in await held[-1][0].read()
    for _, writer in held:
        writer.close()
    await server.aclose()


@pytest.mark.parametrize("text", ["", "x", "0", "99999", "-1"])
async def test_a_note_that_is_no_port_is_written_anew(tmp_path: Path, text: str) -> None:
    note = tmp_path / "metrics.port"
    note.write_text(text)
    server = await serve_metrics(GatewayMetrics().registry, note)
    assert note.read_text() == f"{server.port}\n"
    await server.aclose()
