"""About thirty kinds of edit of a deployment that serves under load: what restarts, what fails, and when it takes effect.

`-s` prints a line for each; docs/changing.md has them.
"""

import json
import ssl
import threading
import time

import httpx
import pytest
import yaml
from served_tiny import Load, engine_pid

pytestmark = [pytest.mark.full, pytest.mark.integration, pytest.mark.any_engine, pytest.mark.timeout(600)]

UNSEEN = {
    "keys: [default]": {"keys": ["default"]},
    "keys: [default, laptop]": {"keys": ["default", "laptop"]},
    "aliases: [gpt-4o]": {"aliases": ["gpt-4o"]},
    "aliases: [gpt-4o, small]": {"aliases": ["gpt-4o", "small"]},
    "objective: throughput": {"objective": "throughput"},
    "objective: context": {"objective": "context"},
    "content: code": {"content": "code"},
    "license: open": {"license": "open"},
    "silence: 600": {"silence": 600},
    "endpoints: [/v1/pooling]": {"endpoints": ["/v1/pooling"]},
    "engine: vllm": {"engine": "vllm"},
    "speculation: none": {"speculation": "none"},
    "nodes: [this]": {"nodes": ["this"]},
    "parallel: {tp: 1}": {"parallel": {"tp": 1}},
    "replicas: 1": {"replicas": 1},
    "runtime: process": {"runtime": "process"},
    "aliases and keys at once": {"aliases": ["gpt-4o"], "keys": ["default"]},
    "loop_tokens: 200": {"loop_tokens": 200},
    "replay: true": {"replay": True},
    "external: one endpoint": {"external": [{"url": "http://127.0.0.1:9/v1", "model": "elsewhere"}]},
    "the model as a variant": {"model": None, "variants": [{"model": "builtin:tiny"}]},
}
"""Edits that no engine's command has: a field, and what it is changed to; None takes it out."""
SAME = {
    "needs: []": {"needs": []},
    "license: any": {"license": "any"},
    "trust_remote_code: false": {"trust_remote_code": False},
}
"""Edits of a file that mean what it meant before."""
SEEN = {
    "context: 1024": {"context": 1024},
    "concurrency: 8": {"concurrency": 8},
    "engine_args: [--seed, 7]": {"engine_args": ["--seed", "7"]},
    "env: {SEEN: yes}": {"env": {"SEEN": "yes"}},
    "speculation: ngram": {"speculation": {"method": "ngram", "tokens": 2}},
    "media_domains: [example.org]": {"media_domains": ["example.org"]},
}
"""Edits that change an engine's command."""
LIVE_AFTERWARDS = {"media_domains: [example.org]": {"media_domains": []}}
"""Edits that take back what an engine was started with, and restart none."""
AT_ONCE_S = 1.0
"""Longest time until an edit that no engine sees has taken effect."""


class Watch:
    """Looks at the controller without a pause, and keeps when each generation was seen to be ready (Unix seconds)."""

    def __init__(self, fleet):
        self._fleet, self._over = fleet, threading.Event()
        self.ready = {}
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        api, token = json.loads(self._fleet.paths.address.read_text())["api"], self._fleet.paths.api_token
        headers = {"authorization": f"Bearer {token.read_text()}"}
        with httpx.Client(base_url=api, headers=headers, timeout=30) as client:
            while not self._over.wait(0.02):
                for one in client.get("/v1/fleet").json()["deployments"]:
                    if (one["name"], one["state"]) == ("tiny", "ready"):
                        self.ready.setdefault(one["generation"], time.time())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def base(fleet):
    """The deployment that serves before each edit, and a second key."""
    for other in [d["name"] for d in fleet.deployments() if d["name"] != "tiny"]:
        fleet.ok("delete", "--yes", other)
    spec = yaml.safe_load(fleet.spec())
    apply(fleet, spec)
    fleet.run("keys", "create", "laptop")
    fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
    return spec


def apply(fleet, spec):
    return fleet.apply(fleet.write("tiny.yaml", yaml.safe_dump(spec, sort_keys=False)))


def changed(spec, fields):
    return {name: value for name, value in {**spec, **fields}.items() if value is not None}


def engines(fleet):
    return {engine_pid(one) for one in fleet.deployment()["groups"]}


def applied_at(fleet, generation):
    """Time at which the controller took a generation, Unix seconds."""
    events = fleet.json("events", "tiny")["events"]
    return next(one["at"] for one in events if (one["generation"], one["kind"]) == (generation, "wanted"))


def line(words, restarts, failed, seconds):
    print(f"| {words} | {restarts} | {failed} | {seconds:.2f} s |")


def test_edits_that_no_engine_sees_restart_none_and_fail_no_request(fleet, base):
    before, missed = engines(fleet), {}
    for words, fields in UNSEEN.items():
        with Watch(fleet) as watch, Load(fleet) as load:
            out = apply(fleet, changed(base, fields))
            generation = fleet.deployment()["generation"]
            fleet.until(lambda seen=watch.ready, one=generation: one in seen, timeout=30)
        failed = [status for status in load.statuses if status != 200]
        took_s = watch.ready[generation] - applied_at(fleet, generation)
        line(words, len(engines(fleet) - before), len(failed), took_s)
        if engines(fleet) != before or failed or took_s > AT_ONCE_S or "restarts no engine" not in out:
            missed[words] = (engines(fleet), failed, took_s, out)
        apply(fleet, base)
    assert missed == {}


def test_edits_that_mean_the_same_are_no_change(fleet, base):
    before, generation = engines(fleet), fleet.deployment()["generation"]
    for words, fields in SAME.items():
        file = fleet.write("tiny.yaml", yaml.safe_dump(changed(base, fields), sort_keys=False))
        with Load(fleet) as load:
            began = time.time()
            assert fleet.run("plan", file)[0] == 0, words
            fleet.apply(file)
        failed = [status for status in load.statuses if status != 200]
        line(f"{words} (plan and apply)", len(before - engines(fleet)), len(failed), time.time() - began)
        assert (engines(fleet), fleet.deployment()["generation"], failed) == (before, generation, []), words


def test_edits_of_the_command_restart_the_engine_and_fail_no_request(fleet, base):
    for words, fields in SEEN.items():
        before = engines(fleet)
        with Watch(fleet) as watch, Load(fleet) as load:
            out = apply(fleet, changed(base, fields))
            generation = fleet.deployment()["generation"]
            fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
        failed = [status for status in load.statuses if status != 200]
        line(
            words,
            len(before - engines(fleet)),
            len(failed),
            watch.ready[generation] - applied_at(fleet, generation),
        )
        assert "restarts the engine" in " ".join(out.split()), words
        assert not engines(fleet) & before, words
        assert failed == [], words
        if words in LIVE_AFTERWARDS:
            before = engines(fleet)
            out = apply(fleet, changed(base, LIVE_AFTERWARDS[words]))
            assert "restarts no engine" in out, words
            assert engines(fleet) == before, words
    apply(fleet, base)
    fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)


def test_commands_that_change_what_runs_restart_nothing_that_stays(fleet, base):
    (engine,) = engines(fleet)
    steps = {
        "scale 2": ("scale", "--yes", "tiny", "2"),
        "scale 1": ("scale", "--yes", "tiny", "1"),
        "keys limit": ("keys", "limit", "laptop", "--concurrent", "2"),
        "keys rotate": ("keys", "rotate", "laptop"),
        "keys revoke": ("keys", "revoke", "laptop"),
    }
    for words, argv in steps.items():
        with Load(fleet) as load:
            began = time.time()
            fleet.ok(*argv)
            took_s = time.time() - began
            if words == "scale 1":
                fleet.until(lambda: len(fleet.deployment()["groups"]) == 1)
        failed = [status for status in load.statuses if status != 200]
        line(
            f"`sparkfleet {' '.join(argv).replace(' --yes', '')}` (whole command)",
            int(engine not in engines(fleet)),
            len(failed),
            took_s,
        )
        assert engine in engines(fleet), words
        assert failed == [], words


def test_a_rollback_to_what_runs_restarts_nothing(fleet, base):
    before = engines(fleet)
    apply(fleet, changed(base, {"aliases": ["gpt-4o"]}))
    with Watch(fleet) as watch, Load(fleet) as load:
        fleet.ok("rollback", "--yes", "tiny")
        generation = fleet.deployment()["generation"]
        fleet.until(lambda: generation in watch.ready, timeout=30)
    failed = [status for status in load.statuses if status != 200]
    took_s = watch.ready[generation] - applied_at(fleet, generation)
    line("`sparkfleet rollback tiny`", len(before - engines(fleet)), len(failed), took_s)
    assert took_s <= AT_ONCE_S
    assert engines(fleet) == before
    assert failed == []


def test_other_origins_change_the_gateway_alone(fleet, base):
    before = engines(fleet)
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    origins = {**inventory["gateway"], "origins": ["https://chat.example.org"]}
    with Load(fleet) as load:
        fleet.write("inventory.yaml", yaml.safe_dump({**inventory, "gateway": origins}))
        began = time.time()
        try:
            fleet.ok("up")
            took_s = time.time() - began
            asked = {"origin": "https://chat.example.org", "authorization": f"Bearer {fleet.key}"}
            allowed = httpx.get(f"{fleet.endpoint}/models", headers=asked).headers
        finally:
            fleet.write("inventory.yaml", yaml.safe_dump(inventory))
            fleet.ok("up")
    failed = [status for status in load.statuses if status != 200]
    line(
        "`gateway: {origins: …}`, then `sparkfleet up` (whole command)",
        len(before - engines(fleet)),
        len(failed),
        took_s,
    )
    assert allowed["access-control-allow-origin"] == "https://chat.example.org"
    assert engines(fleet) == before
    assert failed == []


def test_a_certificate_is_taken_at_once_and_its_port_stays(fleet, base):
    before, plain = engines(fleet), fleet.endpoint
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    headers = {"authorization": f"Bearer {fleet.key}"}
    fleet.write(
        "inventory.yaml",
        yaml.safe_dump({**inventory, "gateway": {**inventory["gateway"], "tls": "generated"}}),
    )
    try:
        fleet.ok("up")
        status = fleet.json("status")
        (gateway,) = status["gateways"]
        trust = ssl.create_default_context(cadata=gateway["certificate"]["authority"])
        answer = httpx.get(f"{status['endpoint']}/models", headers=headers, verify=trust, timeout=30)
    finally:
        fleet.write("inventory.yaml", yaml.safe_dump(inventory))
        fleet.ok("up")
    assert status["endpoint"] == plain.replace("http://", "https://")
    assert answer.status_code == 200
    assert httpx.get(f"{plain}/models", headers=headers, timeout=30).status_code == 200
    assert engines(fleet) == before
