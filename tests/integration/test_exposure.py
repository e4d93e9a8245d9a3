"""Every socket of a fleet of two nodes, asked without a token, gives nothing away.

One model is served over both nodes, by real vLLM, and one custom workload, which checks no token itself.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files

import httpx
import pytest
from lab_fleet import CHECKOUT
from scanner import scan, sockets
from socket_answers import PROBES

pytestmark = [pytest.mark.integration, pytest.mark.full]

SPEECH = CHECKOUT / "tests/integration/stand_ins/speech.py"
NODES = ("spark1", "spark2")
PAIR = "parallel: {tp: 2}\n"
CUSTOM = (
    "name: speech\nmodel: speech/one\nengine: custom\nmemory: 1 GiB\nnodes: [spark2]\nport: 5010\nhealth: /health\n"
    "command: "
    + json.dumps(["sh", "-c", f"exec {sys.executable} {SPEECH} $SPARKFLEET_HOST $SPARKFLEET_PORT"])
)


@pytest.fixture(scope="module")
def served(pair):
    """The fleet that serves both."""
    pair.serve(pair.spec(PAIR, real=True))
    pair.apply(CUSTOM, "speech.yaml")
    pair.until(lambda: pair.is_ready("speech"))
    yield pair
    pair.ok("delete", "--yes", "speech")


def addresses(fleet, node):
    """Every address of a node but loopback's."""
    found = json.loads(fleet.lab.exec(node, ["ip", "-j", "-4", "addr"]).stdout)
    every = [one["local"] for netdev in found for one in netdev["addr_info"]]
    return [address for address in every if not address.startswith("127.")]


@pytest.fixture(scope="module")
def answers(served):
    """Every socket of both nodes, asked by itself and by the other, while the engine generates."""
    with generating(served):
        return [
            answer
            for node in NODES
            for asking in NODES
            for answer in scan(served.lab, node, asking, addresses(served, node))
        ]


@contextmanager
def generating(fleet):
    """One request after the other meanwhile: ranks of an idle engine send each other nothing."""
    over = False

    def chat():
        while not over:
            fleet.chat(tokens=200)

    with ThreadPoolExecutor(1) as pool:
        chatting = pool.submit(chat)
        try:
            yield
        finally:
            over = True
        chatting.result()


def test_the_scan_reaches_what_is_open(served, answers):
    """The gateway's health is found, or the scanner would prove nothing."""
    gateway = int(served.endpoint().rpartition(":")[2].partition("/")[0])
    assert [
        one for one in answers if one.port == gateway and one.request == "GET /healthz" and one.status == 200
    ]
    engine = httpx.URL(served.group()["url"])
    asked = [one for one in answers if (one.address, one.port) == (engine.host, engine.port)]
    assert {one.status for one in asked if one.request not in PROBES} == {401}  # by HTTP


def test_sockets_of_other_protocols_are_judged_too(answers):
    """Ray's are gRPC behind TLS; if none was recognised, the scanner would prove nothing about them."""
    kinds = {(one.process, one.verdict.words.partition(":")[0].partition(",")[0]) for one in answers}
    for process, words in sorted(kinds):
        print(process, words)
    over_tls = {process for process, words in kinds if words == "TLSv1.3"}
    assert {"gcs_server", "raylet"} < over_tls
    assert any(process.startswith("ray::") for process in over_tls)


LOCAL = {
    ("ray::Controller", "GET /metrics"): "numbers for Prometheus, to users of the head",
    ("ray::Controller", "GET /targets"): "addresses of such pages, to users of the head",
    ("ray::ServeRepli", "GET /metrics"): "the gateway's numbers, to users of the head",
    ("python", "GET /health"): "a custom workload checks no token: its own port is on loopback",
}
"""Answers without a token to users of a node itself."""
HEALTH = {
    ("ray::ServeRepli", "GET /healthz"): "the gateway's",
    ("ray::ServeRepli", "GET /health"): "the same, under the name that vLLM gives it",
    ("ray::DashboardA", "GET /api/local_raylet_healthz"): "Ray's own: it lives",
    ("ray::DashboardA", "GET /api/healthz"): "Ray's own: it lives",
    ("ray::DashboardA", "GET /-/healthz"): "Ray's own: it lives",
}
"""Answers to everybody who reaches a socket."""
RANKS = "VLLM::EngineCor"
"""Sends its steps, with the tokens of prompts, to the other ranks over ZeroMQ, as bytes to whoever connects."""
PAGE = files("sparkfleet.gateway.page").joinpath("static/index.html").read_bytes()


def is_the_page(answer):
    """The page's own file, which has no figure of the fleet: those need a key, or loopback's own name."""
    body = answer.text.partition("\r\n\r\n")[2].encode("latin-1")
    return answer.request == "GET /" and len(body) > 1000 and PAGE.startswith(body)


def test_no_socket_gives_data_without_a_token(served, answers):
    rails = httpx.URL(served.group()["url"]).host
    told = {
        f"{one.process} on {one.address} port {one.port} answers {one.request} from {one.asked_from}: {one.verdict.words}:"
        f" {one.text[-160:]!r}"
        for one in answers
        if one.is_data
        and (one.process, one.request) not in HEALTH
        and not is_the_page(one)
        and not ((one.process, one.request) in LOCAL and one.address.startswith("127."))
        and (one.process, one.address) != (RANKS, rails)
    }
    for line in sorted(told):
        print(line)
    assert not told


def test_which_sockets_others_reach(served):
    """Beside the gateway: Ray, behind its token, and the rendezvous of ranks, which PyTorch opens on every address."""
    found = {
        node: [one for one in sockets(served.lab, node) if not one.local and one.port != 22] for node in NODES
    }
    for node, every in found.items():
        print(node, [(one.address, one.port, one.process) for one in every])
    assert all(found.values())


def test_steps_of_an_engine_are_read_on_the_rails_alone(served, answers):
    """The row of docs/security.md about them. If none is seen, the scan found the engine idle and proves nothing."""
    read = {(one.node, one.address) for one in answers if one.process == RANKS and one.is_data}
    assert read == {("spark1", httpx.URL(served.group()["url"]).host)}
