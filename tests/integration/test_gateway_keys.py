"""The gateway under real Ray: limits, aliases, long bodies, the reason for a group, usage over a killed gateway, entries."""

import json
import time

import pytest
from asking import Asking

pytestmark = [pytest.mark.integration, pytest.mark.full]

ASK = """
import json, sys, urllib.request, urllib.error
url, key, body, headers = json.load(sys.stdin)
request = urllib.request.Request(url, json.dumps(body).encode(), {"authorization": "Bearer " + key,
    "content-type": "application/json", **headers})
try:
    answer = urllib.request.urlopen(request, timeout=120)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, dict(answer.headers), answer.read().decode()]))
"""


def ask(fleet, key, body, **headers):
    head = fleet.lab.nodes[0].name
    url = fleet.endpoint() + "/chat/completions"
    told = json.dumps([url, key, body, headers])
    out = fleet.lab.exec(head, ["python3", "-c", ASK], stdin=told, timeout_s=150).stdout
    status, fields, text = json.loads(out)
    return status, {name.lower(): value for name, value in fields.items()}, json.loads(text)


def question(text="What is a rail?", model="tiny"):
    return {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": text}]}


def key_of(fleet, *options):
    return json.loads(fleet.ok("keys", "create", *options, "--json"))["key"]


def test_what_a_key_may_and_what_it_used_over_a_killed_gateway(pair):
    pair.serve(pair.spec("replicas: 1\naliases: [gpt-4o]\n"))
    few, many = key_of(pair, "few", "--requests-per-minute", "2"), key_of(pair, "many")
    assert [ask(pair, few, question())[0] for _ in range(2)] == [200, 200]
    status, fields, answer = ask(pair, few, question())
    assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(fields["retry-after"]) <= 60
    assert "2 requests/min" in pair.ok("keys", "list")

    status, fields, answer = ask(pair, many, question(model="gpt-4o"), **{"x-sparkfleet-explain": "1"})
    assert (status, answer["model"]) == (200, "tiny")
    assert json.loads(fields["x-sparkfleet-explain"])["why"] == "the only group that can serve it"
    assert ask(pair, many, question("word " * 100_000))[2]["error"]["code"] == "context_length_exceeded"

    file = pair.write("request.json", json.dumps(question()))
    shown = pair.ok("route", file, "--key", "@" + pair.write("many.key", many))
    assert "tiny → " in shown
    connect = json.loads(pair.ok("connect", "opencode", "gpt-4o", "--json"))
    assert "sparkfleet/gpt-4o" in connect["text"]
    assert many not in connect["text"]

    pair.until(lambda: used(pair) == {"few": 2, "many": 1}, timeout=30)
    assert [ask(pair, many, question())[0] for _ in range(3)] == [200] * 3
    time.sleep(
        0.5
    )  # more than the pause between two writes of the journal, far less than that between two reports
    (gateway,) = [
        pid
        for pid, line in pair.listed(pair.lab.nodes[0].name).items()
        if "ray::ServeReplica:gateway" in line
    ]
    pair.lab.exec(pair.lab.nodes[0].name, ["kill", "-9", str(gateway)])
    pair.until(lambda: answers(pair, many), timeout=60)
    pair.until(lambda: used(pair) == {"few": 2, "many": 5}, timeout=30)  # none is lost and none counted twice

    new = json.loads(pair.ok("keys", "rotate", "many", "--json"))["key"]
    assert ask(pair, many, question())[0] == 401
    assert ask(pair, new, question())[0] == 200
    for name in ("few", "many"):
        pair.ok("keys", "revoke", name)


def used(fleet):
    rows = json.loads(fleet.ok("usage", "--json"))["usage"]
    return {row["key"]: row["requests"] for row in rows if row["key"] in ("few", "many")}


def answers(fleet, key):
    try:
        return ask(fleet, key, question())[0] == 200
    except (ValueError, OSError):
        return False


def entries(fleet):
    """Process ids of the entry on the second node."""
    return [pid for pid, line in fleet.listed("spark2").items() if "ray::EntryActor" in line]


def serves(fleet):
    """The second node's address, if the controller found that clients reach the gateway there; None if not."""
    found = fleet.fleet_status().get("entries", ())
    return next((one["url"] for one in found if one["listening"] and not one["trouble"]), None)


def status_of(fleet, node, url):
    """HTTP status of a GET from a node; 000 if nothing accepts the connection."""
    argv = ["curl", "-s", "-m", "15", "-o", "/dev/null", "-w", "%{http_code}", url]
    return fleet.lab.exec(node, argv).stdout


def another_entry(fleet, before):
    """Waits until another process serves as the entry."""
    fleet.until(lambda: entries(fleet) not in ([], before), timeout=30)
    fleet.until(lambda: serves(fleet), timeout=30)


@pytest.mark.any_engine
def test_the_second_nodes_address_is_an_endpoint_and_losing_it_costs_only_its_own_connections(pair):
    spec = pair.spec()
    pair.serve(spec)
    head = pair.endpoint()
    with pair.listening_at(host="0.0.0.0"):
        listening = pair.fleet_status()["listening"]
        opened = {"host": "0.0.0.0", "port": listening["port"]}
        pair.write_gateway(**opened, nodes="all")
        with Asking(pair, "tiny", tokens=8) as asking:
            assert "nodes none → spark2" in " ".join(pair.apply(spec).split())
            url = pair.until(lambda: serves(pair), timeout=30)
            time.sleep(2)
        assert set(asking.ends) == {"whole"}, asking.answers
        assert url != head
        assert url in pair.ok("status")

        local = f"http://127.0.0.1:{listening['port']}/api/fleet"
        assert status_of(pair, "spark1", local) == "200", "the head's loopback reads the page"
        assert status_of(pair, "spark2", local) == "401", "another node's does not"

        old = entries(pair)
        assert len(old) == 1
        with Asking(pair, "tiny", tokens=60) as asking, Asking(pair, "tiny", tokens=60, url=url) as beside:
            pair.until(lambda: asking.ends["whole"] and beside.ends["whole"], timeout=60)
            pair.lab.exec("spark2", ["kill", "-9", str(old[0])])
            another_entry(pair, old)
            again = time.time()
            pair.until(lambda: beside.whole_since(again), timeout=60)
        assert set(asking.ends) == {"whole"}, asking.answers
        assert not beside.dishonest, beside.dishonest

        old = entries(pair)
        with Asking(pair, "tiny", tokens=8) as asking:
            pair.lab.exec("spark2", ["kill", "-STOP", str(old[0])])
            another_entry(pair, old)
        assert set(asking.ends) == {"whole"}, asking.answers
        pair.until(lambda: "did not run for 3 s and was ended" in pair.ok("events"), timeout=30)

        pair.write_gateway(**opened)
        with Asking(pair, "tiny", tokens=8) as asking:
            assert "nodes spark2 → none" in " ".join(pair.apply(spec).split())
            pair.until(lambda: not entries(pair), timeout=30)
        assert set(asking.ends) == {"whole"}, asking.answers
        assert status_of(pair, "spark1", url.removesuffix("/v1") + "/health") == "000"
        assert pair.fleet_status()["entries"] == []
