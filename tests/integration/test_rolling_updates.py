"""Edits of two replicas that cannot run beside their successors, on real Ray Serve under load: one ends after the other."""

import json
import sys

import pytest
from asking import Asking

pytestmark = [pytest.mark.full, pytest.mark.integration, pytest.mark.any_engine]

PORT = 5031


def two(mark, start_s=3):
    """Two replicas of the packaged fake engine as a custom workload, which listens on a declared port."""
    words = [sys.executable, "-m", "sparkfleet.engines.fake", "--host", "127.0.0.1", "--port", str(PORT)]
    words += ["--model", "two", "--itl-ms", "5", "--start-s", str(start_s)]
    return (
        f"name: two\nmodel: two/two\nengine: custom\ncommand: {json.dumps(words)}\nport: {PORT}\nmemory: 1 GiB\n"
        f"health: /health\nnodes: [spark1, spark2]\nreplicas: 2\nenv: {{MARK: '{mark}'}}\n"
    )


def generation(pair):
    return pair.deployment("two")["generation"]


def ended(pair, of):
    """Groups of a generation that were retired, each with the reason, in order."""
    events = json.loads(pair.ok("events", "two", "--json"))["events"]
    return {
        one["subject"]: one["message"]
        for one in events
        if one["kind"] == "retire" and one["subject"].startswith(f"two/g{of}/")
    }


def test_an_edit_of_two_replicas_fails_no_request(pair):
    pair.serve(two("old"))
    old = generation(pair)
    with Asking(pair, "two", streams=4, tokens=60) as asking:
        pair.until(lambda: asking.ends["whole"] > 8, timeout=60)
        out = pair.run("plan", pair.write("two.yaml", two("new")))[1]
        assert "end one after the other, and the others serve meanwhile" in " ".join(out.split())
        pair.apply(two("new"), "two.yaml")
        pair.until(lambda: len(ended(pair, old)) == 2, timeout=60)
    assert set(asking.ends) == {"whole"}, [one for one in asking.answers if one["end"] != "whole"]
    (first, why_first), (second, why_second) = ended(pair, old).items()
    one, other = (f"g{old + 1}/{name[-1]}" for name in (first, second))
    assert why_first == f"it and {one} listen on the same port, {PORT}; g{old}/{second[-1]} serves meanwhile"
    assert why_second == f"it and {other} listen on the same port, {PORT}; {one} serves meanwhile"
    assert [group["generation"] for group in pair.deployment("two")["groups"]] == [old + 1] * 2


def test_an_edit_that_does_not_start_ends_one_replica_only_and_fails_no_request(pair):
    pair.serve(two("well"))
    before = generation(pair)
    broken = two("broken").replace('"--model"', '"--no-such-flag"')
    with Asking(pair, "two", streams=4, tokens=60) as asking:
        pair.until(lambda: asking.ends["whole"] > 8, timeout=60)
        code, out, _ = pair.run("apply", "--yes", pair.write("two.yaml", broken))
        assert code != 0, out
        found = pair.deployment("two")
        assert (found["state"], found["detail"]) == (
            "failed",
            f"generation {before + 1} did not start; generation {before} serves",
        )
        assert len(ended(pair, before)) == 1
        pair.ok("rollback", "two", "--yes")
    assert set(asking.ends) == {"whole"}, [one for one in asking.answers if one["end"] != "whole"]

    def generations():
        return sorted(group["generation"] for group in pair.deployment("two")["groups"])

    pair.until(lambda: generations() == [before, before + 2], timeout=30)  # the one that served goes on


def test_one_replica_that_ended_for_an_edit_which_does_not_start_serves_again(pair):
    alone = two("alone").replace("replicas: 2\n", "replicas: 1\n")
    pair.serve(alone)
    before = generation(pair)
    code, _, err = pair.run(
        "apply", "--yes", pair.write("two.yaml", alone.replace('"--model"', '"--no-such-flag"'))
    )
    assert code != 0
    assert f"generation {before}, which served before, starts again" in " ".join(err.split())
    words = f"generation {before + 1} did not start; generation {before} serves"
    pair.until(lambda: pair.deployment("two")["detail"] == words, timeout=60)
    out = pair.ok("apply", "--yes", pair.write("two.yaml", alone))
    assert f"restarts no engine: g{before}/0 goes on" in " ".join(out.split())
    assert pair.is_ready("two")
