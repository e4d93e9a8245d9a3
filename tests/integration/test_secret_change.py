"""The internal secrets of a fleet that serves are changed under requests, and none of them fails."""

import json

import pytest
from asking import Asking
from pair_fleet import NODES

pytestmark = [pytest.mark.full, pytest.mark.any_engine]

_TOKENS = """
import json, pathlib, sys, urllib.error, urllib.request
root = next(pathlib.Path.home().glob(".local/state/sparkfleet/*/address.json")).parent
api = json.loads((root / "address.json").read_text())["api"]
def code(token):
    request = urllib.request.Request(api + "/v1/fleet", headers={"authorization": f"Bearer {token}"})
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
given = json.load(sys.stdin)
print(json.dumps({"now": (root / "api.token").read_text(), "codes": [code(token) for token in given]}))
"""


@pytest.fixture(scope="module")
def served(pair):
    pair.serve(pair.spec())
    return pair


def api(fleet, *tokens):
    """The present API token, and the status codes that these get."""
    done = fleet.lab.exec(NODES[0], ["python3", "-I", "-c", _TOKENS], stdin=json.dumps(tokens))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["now"], found["codes"]


def secrets_of(fleet):
    """Marks of the secrets of engines that are not gone."""
    groups = fleet.deployment()["groups"]
    return {group["secret"] for group in groups if group["phase"] not in ("failed", "stopped")}


def test_no_request_fails_while_the_secrets_change(served):
    old, _ = api(served)
    pids = {node: served.engines(node).keys() for node in NODES}
    before = secrets_of(served)
    with Asking(served, "tiny", streams=3, tokens=8) as asking:
        out = served.ok("keys", "rotate-internal")
        assert "`sparkfleet restart tiny`" in out
        new, codes = api(served, old)
        assert (new != old, codes) == (True, [200])  # the former one is still good
        assert {node: served.engines(node).keys() for node in NODES} == pids  # nothing was restarted
        assert secrets_of(served) == before

        code, _, errors = served.run("keys", "rotate-internal", "--finish")
        assert (code != 0, "engines of tiny have former tokens" in errors) == (True, True), errors

        served.ok("restart", "--yes", "tiny")
        served.until(lambda: before.isdisjoint(secrets_of(served)))
        served.ok("keys", "rotate-internal", "--finish")
        assert api(served, old, new) == (new, [401, 200])
        assert served.engine_get("/v1/models")[0] == 200
    assert asking.ends.keys() == {"whole"}, asking.ends
    assert asking.ends["whole"] > 20


def kill_actor(fleet):
    """Ends the process of the group's actor. Its engine, which is no child of it, runs on."""
    own = f"ray::ServeReplica:tiny--g{fleet.ready_group()['generation']}-"  # an older one may still be ending
    [(node, pid)] = [
        (node, pid) for node in NODES for pid, words in fleet.listed(node).items() if words.startswith(own)
    ]
    fleet.lab.exec(node, ["kill", "-9", str(pid)], root=True)


def test_an_engine_keeps_its_token_if_its_group_is_replaced_during_a_change(served):
    """The new actor adopts the engine, by the former secret, instead of starting it again."""
    before, pids = secrets_of(served), {node: served.engines(node).keys() for node in NODES}
    served.ok("keys", "rotate-internal")
    kill_actor(served)
    served.until(lambda: (served.ready_group() or {}).get("adopted"))
    assert secrets_of(served) == before
    assert {node: served.engines(node).keys() for node in NODES} == pids
    assert served.chat()
    served.ok("restart", "--yes", "tiny")
    served.until(lambda: before.isdisjoint(secrets_of(served)))
    served.ok("keys", "rotate-internal", "--finish")
