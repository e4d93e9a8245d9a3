"""The table of listening sockets in docs/security.md is what `ss` shows on both nodes of a fleet that serves.

One model is served over both nodes, and one custom workload, which checks no token itself.
"""

import json
import sys
from typing import NamedTuple

import pytest
from lab_fleet import CHECKOUT
from scanner import sockets

from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.specs.load import load_inventory

pytestmark = pytest.mark.full

NODES = ("spark1", "spark2")
SPEECH = CHECKOUT / "tests/integration/stand_ins/speech.py"
CUSTOM = (
    "name: speech\nmodel: speech/one\nengine: custom\nmemory: 1 GiB\nnodes: [spark2]\nport: 5010\nhealth: /health\n"
    "command: "
    + json.dumps(["sh", "-c", f"exec {sys.executable} {SPEECH} $SPARKFLEET_HOST $SPARKFLEET_PORT"])
)
KINDS = {"127.0.0.1": "loopback", "fabric address": "fabric", "every address": "any"}
"""Words of the page's column of addresses, and what they mean."""

RANKS = "ranks of a vLLM group among themselves (ZeroMQ, gloo)"


class Found(NamedTuple):
    """A listening socket with the page's row that it belongs to."""

    row: str
    kind: str
    where: str


def page():
    """The kinds of addresses by the rows of the page's table."""
    text = (
        (CHECKOUT / "docs" / "security.md")
        .read_text()
        .partition("## Listening sockets")[2]
        .partition("\n## ")[0]
    )
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return {
        name.strip(): {kind for words, kind in KINDS.items() if words in address}
        for name, address, *_ in cells
    }


def row_of(one, words, gateway):
    """The row of a socket, by its process, its command line and its port."""
    if one.process == "sshd":
        return "SSH"
    if one.process == "ray::EntryActor" and one.port == gateway:
        return "entry of the gateway"
    if one.process == "ray::ServeRepli" and (one.local or one.port == gateway):
        return "gateway" if one.port == gateway else "gateway's figures for Prometheus"
    if one.process == "ray::Controller" and one.local:
        return "controller's API"
    if one.process.startswith(("ray::", "raylet", "gcs_server")):
        return "Ray: GCS, raylet, agents, workers"
    if "sparkfleet.runtime.supervisor" in words or "speech.py" in words:
        return "TensorRT-LLM, custom workloads"
    if one.process.startswith("VLLM::") and not one.anywhere:
        return RANKS
    if "vllm" in words.lower() or "sparkfleet.engines.fake" in words:
        return "rendezvous of ranks (PyTorch)" if one.anywhere else "vLLM, SGLang"
    return f"not on the page: {one.process} ({words[:200]})"


@pytest.fixture(scope="module")
def found(pair):
    """Every socket of both nodes."""
    pair.serve(pair.spec("parallel: {tp: 2}\n"))
    pair.apply(CUSTOM, "speech.yaml")
    pair.until(lambda: pair.is_ready("speech"))
    gateway = int(pair.endpoint().rpartition(":")[2].partition("/")[0])
    with pair.listening_at(host="0.0.0.0", nodes="all"):
        pair.until(lambda: all(one["listening"] for one in pair.fleet_status()["entries"]), timeout=30)
        every = scanned(pair, gateway)
    pair.ok("delete", "--yes", "speech")
    for one in sorted(every):
        print(*one)
    return every


def scanned(pair, gateway):
    """The sockets, each with its row."""
    fabric = {
        name: one.address
        for name, one in node_addresses(load_inventory(pair.directory / "inventory.yaml")).items()
    }
    every = []
    for node in NODES:
        listed = pair.listed(node)
        for one in sockets(pair.lab, node):
            own = "fabric" if one.address == fabric[node] else f"another address: {one.address}"
            kind = "any" if one.anywhere else "loopback" if one.local else own
            where = f"{one.process} on {node}, {one.address} port {one.port}"
            every.append(Found(row_of(one, listed.get(one.pid, ""), gateway), kind, where))
    return every


def test_every_socket_is_on_the_page_and_listens_where_the_page_has_it(found):
    rows = page()
    assert {one.row for one in found} <= rows.keys()
    assert [one for one in found if one.row != "SSH" and one.kind not in rows[one.row]] == []


def test_every_row_of_the_page_is_a_socket_that_exists(found, pair):
    unseen = (
        set() if pair.real else {"rendezvous of ranks (PyTorch)", RANKS}
    )  # the fake engine's ranks meet on the rails
    assert page().keys() - {one.row for one in found} == unseen
