import aiohttp
import pytest

from sparkfleet.gateway.http_server import serve
from sparkfleet.gateway.metrics_page import metrics_app
from sparkfleet.telemetry.metrics import GatewayMetrics


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 404)])
async def test_the_page(path: str, status: int) -> None:
    metrics = GatewayMetrics()
    metrics.retries.labels("tiny").inc(2)
    server = await serve(metrics_app(metrics.registry), "127.0.0.1", 0)
    async with aiohttp.request("GET", server.url + path) as answer:
        text = await answer.text()
        assert answer.status == status
    assert ('sparkfleet_retries_total{model="tiny"} 2.0' in text) == (status == 200)
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain; version=")
    await server.aclose()
