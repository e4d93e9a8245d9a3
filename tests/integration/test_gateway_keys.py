"""The gateway under real Ray: limits, aliases, long bodies, the reason for a group, and usage over a killed gateway."""

import json
import time

import pytest

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
