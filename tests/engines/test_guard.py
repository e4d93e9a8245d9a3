"""Nothing of an engine answers without its token."""

import pytest

from sparkfleet.engines.guard import Guard
from sparkfleet.engines.guarded import GUARD, METRICS_ENV, MODULE


class Called:
    """An application that counts its calls, and what is sent to a client."""

    def __init__(self):
        self.calls = 0
        self.sent = []

    async def __call__(self, scope, receive, send):
        self.calls += 1

    async def send(self, message):
        self.sent.append(message)


async def asked(path="/v1/models", method="GET", kind="http", **headers):
    """(was it passed on, what was sent) of one request; headers by name, several values as a list."""
    app = Called()
    pairs = [
        (name.encode(), value.encode())
        for name, values in headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    await Guard(app)({"type": kind, "path": path, "method": method, "headers": pairs}, None, app.send)
    return bool(app.calls), app.sent


@pytest.fixture(autouse=True)
def tokens(monkeypatch):
    for name, value in (("VLLM_API_KEY", "tok"), (METRICS_ENV, "met")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/tokenize", "/scale_elastic_ep", "/docs", "/metrics", "/health", "/v1/models", "/"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
async def test_without_the_token_nothing_is_passed_on(path, method):
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic tok"}, {"x-api-key": "tok"}):
        passed, sent = await asked(path, method, **headers)
        assert (passed, sent[0]["status"]) == (False, 401)


async def test_with_the_token_everything_is():
    for path in ("/invocations", "/metrics", "/health"):
        assert await asked(path, "POST", authorization="bearer tok") == (True, [])


async def test_the_metrics_token_reads_the_metrics_and_nothing_else():
    met = {"authorization": "Bearer met"}
    assert (await asked("/metrics", **met))[0]
    for path, method in (
        ("/metrics", "POST"),
        ("/metrics/", "GET"),
        ("/v1/models", "GET"),
        ("/health", "GET"),
    ):
        assert not (await asked(path, method, **met))[0]


async def test_while_the_secrets_change_two_metrics_tokens_read_the_metrics(monkeypatch):
    monkeypatch.setenv(METRICS_ENV, "new met")
    for token, good in (("new", True), ("met", True), ("new met", False), ("", False), ("other", False)):
        assert (await asked("/metrics", authorization=f"Bearer {token}"))[0] is good


async def test_two_headers_are_none():
    assert not (await asked(authorization=["Bearer tok", "Bearer no"]))[0]


async def test_a_websocket_is_closed_before_it_opens():
    assert await asked(kind="websocket") == (False, [{"type": "websocket.close", "code": 1008}])
    assert (await asked(kind="websocket", authorization="Bearer tok"))[0]


async def test_without_a_token_to_compare_everything_is_refused(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY")
    monkeypatch.delenv(METRICS_ENV)
    for given in ("Bearer ", "Bearer", "Bearer None"):
        assert not (await asked("/metrics", authorization=given))[0]


async def test_the_servers_own_start_passes():
    assert (await asked(kind="lifespan"))[0]


def test_the_file_that_an_image_gets_is_this_module_alone():
    assert GUARD.name == f"{MODULE}.py"
    assert "sparkfleet." not in "".join(
        line for line in GUARD.text.splitlines() if line.startswith(("import", "from"))
    )
    compile(GUARD.text, GUARD.name, "exec")
