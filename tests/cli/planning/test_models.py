from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import statuses
from open_client import OpenClient
from tiny_gguf import Q4_K, Q8_0, llama_gguf, llama_shards, tower_gguf

from sparkfleet.cli.options import open_session
from sparkfleet.cli.output import progress_text
from sparkfleet.cli.planning import models
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.storage.models import ModelsHeld, grouped, unused_models, used_names
from sparkfleet.runtime.files.state_probe import state_root
from sparkfleet.specs.deployment import Deployment
from sparkfleet.staging.agent.scan import HeldVersion, NodeScan
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.progress import TransferProgress
from sparkfleet.staging.storage_layout import DirectoryPlace, note_directory

FAKE_HUB = Path(__file__).parents[2] / "staging" / "fake_hub.py"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = b"w" * 5000


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A fleet of this machine alone, in a directory of its own."""
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: a\nnodes:\n  a: {address: local}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def serve_hub(home, monkeypatch):
    """serve_hub(files) starts a Hub that has one model of these files, and returns the cache of this machine."""
    running = []

    def serve(files):
        repository = home / "repository"
        for name, content in files.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_bytes(content)
        process = subprocess.Popen(
            [sys.executable, str(FAKE_HUB), "127.0.0.1", str(repository)], stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        monkeypatch.setenv("HF_ENDPOINT", process.stdout.readline().strip())
        monkeypatch.setattr("sparkfleet.fleet.storage.stage.RESERVE_BYTES", 0)
        return home / "hub"

    yield serve
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def hub(serve_hub):
    """A Hub that has one small model."""
    return serve_hub({"config.json": b'{"model_type": "llama"}', "model.safetensors": WEIGHTS})


def status(*specs):
    deployments = tuple(
        DeploymentStatus(
            name=spec.name, generation=1, state="ready", detail="", who="me", since=0.0, plan=None, groups=(),
            spec=spec.model_dump_json(),
        )
        for spec in specs
    )  # fmt: skip
    return statuses.fleet(*deployments)


class Client(OpenClient):
    """A controller with some desired deployments."""

    def __init__(self, *specs):
        self._status = status(*specs)

    async def fleet(self):
        return self._status


def with_deployments(monkeypatch, *specs):
    async def controller(self):
        return Client(*specs)

    monkeypatch.setattr("sparkfleet.fleet.session.Session.controller", controller)


@pytest.mark.integration
def test_pull_list_and_prune(sparkfleet, hub, monkeypatch):
    code, out, err = sparkfleet("models", "pull", "tests/tiny")
    assert (code, err) == (0, "")
    assert "tests/tiny at 0123456 is on a; 5 kB moved." in out
    snapshot = hub / "models--tests--tiny" / "snapshots" / COMMIT
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS

    code, out, _ = sparkfleet("models", "list")
    assert code == 0
    _, row, free = out.splitlines()
    assert row.split() == ["tests/tiny", "0123456", "main", "5", "kB", "a"]
    assert re.fullmatch(r"Free: [\d.]+ [kMGT]B on a\. `sparkfleet prune` shows .*", free)
    code, out, _ = sparkfleet("models", "list", "--json")
    listed = json.loads(out)
    assert listed["version"] == 1
    (model,) = listed["models"]
    assert (model["model"], model["commit"], model["revisions"]) == ("tests/tiny", COMMIT, ["main"])
    there = {"complete": True, "interrupted": False, "bytes": 5023, "path": str(snapshot)}
    assert model["nodes"] == {"a": there}
    assert listed["nodes"]["a"]["free_bytes"] > 0

    kept = state_root("home") / "kv" / "chat" / "key" / "0.bin"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(40960))
    code, out, _ = sparkfleet("models", "list")
    assert "KV of prompts (`kv_disk`): 41 kB on a." in out
    _, out, _ = sparkfleet("models", "list", "--json")
    assert json.loads(out)["nodes"]["a"]["kv_bytes"] == 40960

    with_deployments(monkeypatch, Deployment(name="d", model="tests/tiny@main"))
    code, out, _ = sparkfleet("models", "prune", "--yes")
    assert "Nothing to remove" in out
    assert snapshot.is_dir()

    with_deployments(monkeypatch)
    code, out, _ = sparkfleet("models", "prune", "--keep", "tests/tiny", "--yes")
    assert "Nothing to remove" in out
    code, out, err = sparkfleet("models", "prune")
    assert code == 1
    assert "tests/tiny" in out
    assert "Remove 1 model from the nodes?\nerror: Nothing was changed: this needs a confirmation" in err
    code, out, err = sparkfleet("models", "prune", "--json")
    assert (code, json.loads(out)["exit_code"]) == (1, 1)
    assert "tests/tiny" in err
    assert snapshot.is_dir()
    code, out, _ = sparkfleet("models", "prune", "--yes", "--json")
    assert json.loads(out)["removed"] == [
        {"model": "tests/tiny", "commit": COMMIT, "freed_bytes": {"a": 5023}, "kept": {}}
    ]
    assert not (hub / "models--tests--tiny").exists()
    assert "No node has a model." in sparkfleet("models", "list")[1]


@pytest.mark.integration
class TestGgufTags:
    """Two quantisations of one repository, of which a deployment serves one."""

    FOUR, EIGHT = "tests/tiny:Q4_K_M", "tests/tiny:UD-Q8_0"
    SHARDS = tuple(f"UD-Q8_0/tiny-UD-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2))
    TOWER = "mmproj-F16.gguf"

    @pytest.fixture
    def pulled(self, sparkfleet, serve_hub):
        """The snapshot with both."""
        shards = dict(zip(self.SHARDS, llama_shards(kind=Q8_0, fill=b"8"), strict=True))
        four = {"tiny-Q4_K_M.gguf": llama_gguf(Q4_K, fill=b"4"), self.TOWER: tower_gguf()}
        hub = serve_hub(four | shards)
        for model in (self.FOUR, self.EIGHT):
            code, _, err = sparkfleet("models", "pull", model)
            assert (code, err) == (0, "")
        return hub / "models--tests--tiny" / "snapshots" / COMMIT

    @staticmethod
    def left(snapshot):
        return {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.exists()}

    @pytest.mark.parametrize("named", ["tests/tiny:Q4_K_M", "tests/tiny@main:q4_k_m"])
    def test_the_one_in_use_stays_with_the_tower_that_both_have(self, sparkfleet, pulled, monkeypatch, named):
        with_deployments(monkeypatch, Deployment(name="d", model=named))
        code, out, err = sparkfleet("models", "prune")
        assert (code, "Remove 1 model from the nodes?" in err) == (1, True)
        assert self.EIGHT in out
        assert self.FOUR not in out
        code, out, _ = sparkfleet("models", "prune", "--yes", "--json")
        assert [one["model"] for one in json.loads(out)["removed"]] == [self.EIGHT]
        assert self.left(pulled) == {"tiny-Q4_K_M.gguf", self.TOWER}
        assert "Nothing to remove" in sparkfleet("models", "prune", "--yes")[1]

    def test_a_draft_counts_as_used(self, sparkfleet, pulled, monkeypatch):
        draft = {"method": "draft", "tokens": 4, "draft": self.EIGHT}
        with_deployments(monkeypatch, Deployment(name="d", model=self.FOUR, speculation=draft))
        assert "Nothing to remove" in sparkfleet("models", "prune", "--yes")[1]

    def test_one_is_kept_by_its_tag_in_any_letter_case(self, sparkfleet, pulled, monkeypatch):
        with_deployments(monkeypatch)
        _, out, _ = sparkfleet("models", "prune", "--keep", "tests/tiny:ud-q8_0", "--yes", "--json")
        assert [one["model"] for one in json.loads(out)["removed"]] == [self.FOUR]
        assert self.left(pulled) == {*self.SHARDS, self.TOWER}

    def test_the_name_alone_keeps_every_tag(self, sparkfleet, pulled, monkeypatch):
        with_deployments(monkeypatch)
        assert "Nothing to remove" in sparkfleet("models", "prune", "--keep", "tests/tiny", "--yes")[1]
        assert len(self.left(pulled)) == 4


def test_one_that_was_staged_without_its_tag_is_used_by_a_deployment_with_it(home, monkeypatch):
    """Its row has the repository's name alone, and `prune` removed the files that were being served."""
    held = HeldVersion(kind="hub", name="tests/tiny", commit=COMMIT, complete=True, held={"a": 1})
    other = held.model_copy(update={"name": "tests/other"})

    async def models_held(session, on_event):
        return ModelsHeld(((held, {"a": held}), (other, {"a": other})), {}, {})

    with_deployments(monkeypatch, Deployment(name="d", model="tests/tiny:Q4_K_M"))
    monkeypatch.setattr("sparkfleet.fleet.storage.models.models_held", models_held)
    rows = asyncio.run(unused_models(open_session(Path("inventory.yaml")), frozenset(), print))
    assert [row[0].name for row in rows] == ["tests/other"]


def test_the_interrupted_copy_of_a_directory_is_listed_and_pruned(sparkfleet, home, monkeypatch):
    """`.m.staging` was listed and freed by no verb, and after a push `No node has a model.`"""
    name, files = str(home / "m"), (File(path="model.safetensors", size=5000, digest="a" * 64),)
    note_directory(Manifest(kind="directory", name=name, files=files), "")
    place = DirectoryPlace(home / "m")
    place.beside.mkdir()
    place.part(files[0]).write_bytes(b"w" * 2000)
    _, out, _ = sparkfleet("models", "list")
    words = " ".join(out.split())
    assert "– 5 kB a 40 %" in words
    assert name in "".join(line.partition(" ")[0] for line in out.splitlines()), "whole, over two lines"
    assert f"a: the copy of {name} was interrupted, 2 kB of 5 kB are in {place.beside}" in words
    assert (
        f"`sparkfleet models push {name} --nodes a` continues it, `sparkfleet models prune` removes" in words
    )
    with_deployments(monkeypatch, Deployment(name="d", model=name))
    assert "Nothing to remove" in sparkfleet("models", "prune", "--yes")[1]
    with_deployments(monkeypatch)
    assert "Removed 1 model: 2 kB freed." in sparkfleet("models", "prune", "--yes")[1]
    assert not place.beside.exists()
    place.beside.mkdir()
    place.final(files[0]).write_bytes(b"w" * 5000)
    place.publish(Manifest(kind="directory", name=name, files=files), "")
    assert "– 5 kB a " in " ".join(sparkfleet("models", "list")[1].split())
    assert "Nothing to remove" in sparkfleet("models", "prune", "--yes")[1], (
        "a whole directory is its owner's"
    )


def test_push_of_what_nobody_has_says_how_to_get_it(sparkfleet, home):
    code, _, err = sparkfleet("models", "push", "tests/tiny")
    assert code == 1
    assert "no node has a complete copy of tests/tiny" in err
    assert "sparkfleet models pull tests/tiny" in err


def test_prune_of_a_fleet_that_is_down_removes_nothing(sparkfleet, home):
    code, _, err = sparkfleet("models", "prune", "--yes")
    assert code == 1
    assert "is down" in err


@pytest.mark.parametrize(
    "argv", [("pull", "../x"), ("push", "a/b/c"), ("pull", "org/x", "--revision", "../y")]
)
def test_a_name_that_is_none(sparkfleet, home, argv):
    code, _, err = sparkfleet("models", *argv)
    assert code == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(("nodes", "is_named"), [((), True), (("--nodes", "a,dead"), False)])
def test_of_eight_nodes_one_that_is_off_may_be_left_out(sparkfleet, home, nodes, is_named):
    """The error had a remedy for the machine only, and nothing was staged on the seven others."""
    key = "SHA256:" + "A" * 43
    dead = f'  dead: {{address: 127.0.0.1, port: 1, user: me, host_key: "{key}"}}\n'
    (home / "inventory.yaml").write_text((home / "inventory.yaml").read_text() + dead)
    code, _, err = sparkfleet("models", "push", "builtin:tiny", *nodes)
    assert code == 1
    assert "dead (127.0.0.1)" in err
    assert ("`--nodes` with the names of the others" in err) is is_named


def test_a_node_that_is_not_in_the_inventory(sparkfleet, home):
    code, _, err = sparkfleet("models", "pull", "org/x", "--nodes", "a,b")
    assert code == 1
    assert 'there is no node "b"' in err


def test_what_a_deployment_names_is_used_wherever_it_stands():
    used = used_names(
        status(
            Deployment(name="one", model="org/one@v1"),
            Deployment(name="two", variants=({"model": "org/two"}, {"model": "/models/three"})),
            Deployment(
                name="four", model="org/four", engine_args=("--speculative-config", '{"model": "org/draft"}')
            ),
        )
    )
    assert {"org/one", "org/two", "/models/three", "org/four", "org/draft"} <= used


def test_a_snapshot_that_a_deployment_names_by_its_path_is_used(tmp_path):
    """`models prune` removed it: the Hub id is in no text of the deployment."""
    snapshot = f"/home/u/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/{COMMIT}"
    link = tmp_path / "link"
    link.symlink_to(f"/cache/models--org--linked/snapshots/{COMMIT}")
    draft = json.dumps({"model": f"/cache/models--org--draft-1/snapshots/{COMMIT}/"})
    used = used_names(
        status(
            Deployment(name="one", model=snapshot, engine_args=("--speculative-config", draft)),
            Deployment(name="two", model=str(link)),
            Deployment(name="three", model=f"{snapshot.replace('Qwen3', 'Q--3')}"),
        )
    )
    assert {"Qwen/Qwen3-8B", "org/draft-1", "org/linked", "Qwen/Q--3-8B"} <= used


MANIFEST = Manifest(
    kind="hub", name="o/n", commit=COMMIT, files=(File(path="m.safetensors", size=1000, digest="a" * 64),)
)


def test_a_row_shows_who_has_it_whole_and_who_a_part():
    whole = HeldVersion(
        kind="hub", name="o/n", commit=COMMIT, manifest=MANIFEST, complete=True, held={"a" * 64: 1000}
    )
    part = HeldVersion(kind="hub", name="o/n", commit=COMMIT, manifest=MANIFEST, begun={"a" * 64: 620})
    seen = {
        "n1": NodeScan(free_bytes=1, everything=(part,)),
        "n2": NodeScan(free_bytes=1, everything=(whole,)),
    }
    ((first, nodes),) = grouped(seen)
    assert first.complete
    table = models.model_table([(first, nodes)])
    assert [list(column.cells) for column in table.columns] == [
        ["o/n"],
        ["0123456"],
        ["1 kB"],
        ["n1 62 %, n2"],
    ]


def test_progress_in_words():
    progress = TransferProgress(
        phase="link", name="o/n", node="spark2", source="spark1", done_bytes=31_200_000_000,
        total_bytes=50_300_000_000, bytes_per_s=1.1e9, eta_s=17.4,
    )  # fmt: skip
    assert progress_text(progress) == "spark1 → spark2: 62 %, 31 GB of 50 GB, 1.1 GB/s, 17 s left"
    assert progress_text(TransferProgress(phase="note", name="x", node="n1", text="hm")) == "n1: hm"


@pytest.mark.integration
def test_prune_shows_models_and_images_that_no_deployment_uses_and_removes_them(sparkfleet, hub, monkeypatch):
    used, unused = "a" * 64, "b" * 64
    docker = hub.parent / "bin" / "docker"
    docker.parent.mkdir()
    names = hub.parent / "names"
    names.mkdir()
    for digest, tags in ((used, []), (unused, ["vllm:nightly"])):
        (names / digest).write_text(json.dumps([{"Size": 20_000_000_000, "RepoTags": tags}]))
    docker.write_text(
        f'#!/bin/sh\ncd {names}\ncase "$1" in\n'
        "images) for one in *; do echo localhost/sparkfleet-staged:$one; done;;\n"
        'image) cat "${3#*:}";;\nrmi) rm "${2#*:}";;\nesac\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    assert sparkfleet("models", "pull", "tests/tiny")[0] == 0
    serving = Deployment(
        name="d", model="org/other", image=f"nvcr.io/vllm@sha256:{used}", runtime="container"
    )
    with_deployments(monkeypatch, serving)
    code, out, err = sparkfleet("prune")
    assert (code, "Nothing was changed" in err) == (1, True)
    assert "tests/tiny" in out
    assert "a: image bbbbbbbbbbbb  20 GB unpacked" in out
    assert "its bytes stay: it is also vllm:nightly; `docker rmi` there removes it" in out
    assert "Remove 1 model and 1 image from the nodes?" in err
    assert used[:12] not in out
    code, out, _ = sparkfleet("prune", "--yes", "--keep", "tests/tiny")
    assert (code, "Removed: 0 B of models, 1 image." in out) == (0, True), out
    assert [one.name for one in names.iterdir()] == [used]
    code, out, _ = sparkfleet("prune", "--yes", "--json")
    told = json.loads(out)
    assert ([one["model"] for one in told["models"]], told["images"]) == (["tests/tiny"], {})
    assert "no model of the Hub's caches and no staged image is unused." in sparkfleet("prune")[1]


@pytest.mark.parametrize("verb", ["pull", "push"])
def test_a_name_without_its_owner_is_refused_before_the_hub_is_asked(sparkfleet, home, verb):
    """`pull` reported that the Hub is not reachable, or that it has none of that name."""
    code, out, err = sparkfleet("models", verb, "qwen3-8b")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "error: qwen3-8b: a model of the Hub has the name of its owner.",
        f"Did you mean `sparkfleet models {verb} Qwen/Qwen3-8B`?",
    ]
    assert "Give ORG/MODEL" in sparkfleet("models", verb, "nothing-is-like-this")[2]
