"""Facts of checkpoints that are elsewhere, by the verbs that need them: on a node, or at the Hub."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from found_checkpoints import INVENTORY, KEY, KNOWN, Pretending, cached, spark, write

from sparkfleet.fleet.node_access import NodeAccess


@pytest.fixture
def nodes(tmp_path):
    return {name: Pretending(name, tmp_path / name) for name in ("spark1", "spark2")}


class TestVerbs:
    """The command line, where this machine has nothing and spark2 has it."""

    @pytest.fixture(autouse=True)
    def fleet(self, monkeypatch, nodes):
        async def surveyed(inventory, channels, without=()):
            return (spark(), spark().model_copy(update={"name": "spark2"}))

        async def no_fleet_around(inventory, channels, patience_s=None):
            return {}  # the nodes are this machine, on which another fleet may run

        cached(nodes["spark2"].hub, positions=4096)
        monkeypatch.setattr(NodeAccess, "channels", property(lambda self: nodes))
        monkeypatch.setattr("sparkfleet.fleet.planning.plan.collect_facts", surveyed)
        monkeypatch.setattr("sparkfleet.fleet.planning.plan.surroundings_of", no_fleet_around)

    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "inventory.yaml"
        path.write_text(INVENTORY.replace("user: nvidia", f"user: nvidia, {KEY}"))
        return path

    @pytest.fixture
    def deployment(self, tmp_path):
        path = tmp_path / "deployment.yaml"
        path.write_text("name: m\nmodel: Org/Name\nengine: vllm\nspeculation: none\n")
        return path

    def test_plan(self, sparkfleet, deployment, file):
        code, out, err = sparkfleet("plan", deployment, "-i", file)
        assert (code, err) == (2, ""), out
        assert "config alone" not in out
        assert "+ start  m" in out

    def test_apply_agrees(self, sparkfleet, deployment, file):
        code, out, err = sparkfleet("apply", deployment, "-i", file)
        assert code == 1
        assert "+ start  m" in out
        assert "Nothing was changed: this needs a confirmation" in err

    def test_dry_run(self, sparkfleet, deployment, file):
        code, out, _ = sparkfleet("apply", "--dry-run", deployment, "-i", file)
        assert code == 0
        assert "vllm" in out

    @pytest.mark.parametrize("verb", [("plan",), ("apply", "--dry-run")])
    def test_assuming_asks_nobody(self, sparkfleet, deployment, file, nodes, verb):
        code, _, err = sparkfleet(*verb, deployment, "-i", file, "--assume", "dgx-spark")
        assert code == 1
        assert "not in the Hub cache of this machine, and not known by name" in err
        assert nodes["spark1"].asked == nodes["spark2"].asked == 0

    def test_inspect(self, sparkfleet, file):
        code, out, err = sparkfleet("inspect", "Org/Name", "-i", file)
        assert (code, err) == (0, "")
        assert "from      the weight files" in out
        assert "4096" in out

    def test_inspect_finds_the_inventory_where_it_is(self, sparkfleet, file, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert json.loads(sparkfleet("inspect", "Org/Name", "--json")[1])["checkpoint"]["weights_known"]

    def test_inspect_without_one_looks_here_alone(self, sparkfleet, monkeypatch, tmp_path):
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        code, _, err = sparkfleet("inspect", "Org/Name")
        assert code == 1
        assert "of this machine, and not known by name" in err

    def test_inspect_of_what_is_here_reads_no_inventory(self, sparkfleet, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "inventory.yaml").write_text("nodes: [")
        assert sparkfleet("inspect", write(tmp_path / "x"))[0] == 0


# --- at the Hub -------------------------------------------------------------------------------------------------------

FAKE_HUB = Path(__file__).parents[2] / "staging" / "fake_hub.py"
PLAIN = "name: chat\nmodel: tests/tiny\nengine: vllm\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A directory that a Hub on loopback serves as `tests/tiny`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    write(tmp_path / "repository")
    (tmp_path / "chat.yaml").write_text(PLAIN)
    process = subprocess.Popen(
        [sys.executable, str(FAKE_HUB), "127.0.0.1", str(tmp_path / "repository")],
        stdout=subprocess.PIPE,
        text=True,
    )
    monkeypatch.setenv("HF_ENDPOINT", process.stdout.readline().strip())
    yield tmp_path / "repository"
    process.kill()
    process.communicate()


def test_inspect_reads_headers_at_the_hub(sparkfleet, repository):
    code, out, _ = sparkfleet("inspect", "tests/tiny")
    assert code == 0
    assert "exact, from the Hub's safetensors headers at revision 0123456" in out
    code, out, _ = sparkfleet("inspect", "tests/tiny", "--json")
    size = (repository / "model.safetensors").stat().st_size
    assert json.loads(out)["checkpoint"]["bytes_on_disk"] == size


def test_plan_has_exact_sizes_from_the_hub_and_names_their_origin(sparkfleet, repository, two_sparks):
    plan = ("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    _, out, err = sparkfleet(*plan)
    assert err == ""
    assert "tests/tiny: exact, from the Hub's safetensors headers at revision 0123456" in " ".join(
        out.split()
    )
    assert "config alone" not in out
    _, again, _ = sparkfleet(*plan, "--offline")
    assert again == out


def test_offline_nothing_is_asked(sparkfleet, repository, two_sparks):
    code, _, err = sparkfleet("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark", "--offline")
    assert code == 1
    assert "is not in the Hub cache of this machine" in err
    assert "0123456" not in err


@pytest.mark.parametrize("verb", ["inspect", "plan"])
def test_what_is_known_by_name_needs_no_hub(sparkfleet, repository, two_sparks, monkeypatch, verb):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (repository.parent / "chat.yaml").write_text(PLAIN.replace("tests/tiny", KNOWN))
    plan = ("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    code, out, err = sparkfleet(*plan) if verb == "plan" else sparkfleet("inspect", KNOWN)
    assert (code, err) == (0 if verb == "inspect" else 2, "")
    assert "config alone, estimated: http://127.0.0.1:9 is not reachable" in " ".join(out.split())


def test_a_name_that_the_hub_does_not_have(sparkfleet, repository):
    code, _, err = sparkfleet("inspect", "tests/absent")
    assert code == 1
    assert "(HF_ENDPOINT) has no model tests/absent, or it is private" in err
    assert "hf auth login" in err


def test_a_mirror_does_not_refute_what_is_like_a_known_model(sparkfleet, repository):
    code, out, err = sparkfleet("inspect", "Qwen/Qwen3.6-27B-of-tomorrow")
    assert (code, err) == (0, "")
    origin = " ".join(out.split())
    assert "known by the pattern of" in origin
    assert "(HF_ENDPOINT) has no model Qwen/Qwen3.6-27B-of-tomorrow" in origin


@pytest.mark.parametrize("name", ["nope", "a" * 300, f"org/{'a' * 300}", f"/{'a' * 300}"])
def test_inspect_of_a_name_that_none_has(sparkfleet, name):
    """A long one ended with a traceback, and one without an owner had `hf download nope` as its remedy."""
    code, _, err = sparkfleet("inspect", name, "--offline")
    assert (code, "hf download" in err) == (1, False)
    assert name != "nope" or "Give ORG/MODEL" in err
