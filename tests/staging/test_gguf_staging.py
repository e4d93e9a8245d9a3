"""GGUF models of one repository from the Hub to nodes: each by its tag, with its own files alone, beside the others."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from tiny_gguf import Q4_K, Q8_0, llama_gguf, llama_shards, tower_gguf

from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.checkpoints.io.hub_cache import cached_snapshot, resolve
from sparkfleet.errors import FactError
from sparkfleet.fleet.storage.models import grouped
from sparkfleet.staging import hub_outline
from sparkfleet.staging.agent.remove import RemoveRequest
from sparkfleet.staging.agent.remove import work as remove
from sparkfleet.staging.agent.scan import LookRequest, NodeScan
from sparkfleet.staging.agent.scan import work as scan
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.hub_outline import AtHub, at_hub
from sparkfleet.staging.manifest import StagingItem
from sparkfleet.staging.orchestrate import survey
from sparkfleet.staging.settings import Need

MODEL = "tests/tiny"
FOUR, EIGHT = f"{MODEL}:Q4_K_M", f"{MODEL}:UD-Q8_0"
SHARDS = tuple(f"UD-Q8_0/tiny-UD-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2))
TOWER = "mmproj-F16.gguf"


@pytest.fixture
def files() -> dict[str, bytes]:
    """A repository as quantisers make them: one file, shards in a directory, towers, and what no engine loads."""
    return {
        ".gitattributes": b"*.gguf filter=lfs",
        "README.md": b"---\nlicense: mit\n---\n" + b"x" * 200,
        "config.json": b'{"model_type": "llama"}',
        "tiny-Q4_K_M.gguf": llama_gguf(Q4_K, fill=b"4"),
        **dict(zip(SHARDS, llama_shards(kind=Q8_0, fill=b"8"), strict=True)),
        TOWER: tower_gguf(),
        "mmproj-BF16.gguf": tower_gguf(),
        "imatrix_tiny.gguf": b"i" * 1000,
        "mtp-tiny-Q8_0.gguf": b"m" * 1000,
    }


def weights(cache, commit) -> set[str]:
    """GGUF files of a snapshot that lead to a blob."""
    snapshot = cache / "models--tests--tiny" / "snapshots" / commit
    return {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.exists()}


def seen(machines, node: str) -> dict[str, bool]:
    """Models of a node's cache, with True for complete ones."""
    found = scan(LookRequest(everything=True, cache=str(machines.cache(node))), None)
    return {held.name: held.complete for held in found.everything}


# --- plans: facts at the Hub ------------------------------------------------------------------------------------------


@pytest.fixture
async def ask(hub, serve, machines, monkeypatch):
    """ask(model) → what the Hub on loopback has of it."""
    monkeypatch.setenv("HF_ENDPOINT", await serve(hub.app()))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/does/not/exist")
    monkeypatch.setattr("sparkfleet.checkpoints.gguf.gguf_scan.FIRST_READ", 512)  # several pieces

    async def run(model: str) -> AtHub:
        return await asyncio.to_thread(at_hub, model)

    return run


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("model", [FOUR, EIGHT])
async def test_facts_at_the_hub_are_those_of_the_files(ask, hub, files, tmp_path, model, ranges):
    hub.ranges = ranges  # a mirror may ignore them
    for name, content in files.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = (await ask(model)).checkpoint
    expected = read_checkpoint(tmp_path / "repository", id=model)
    assert found == expected.model_copy(update={"path": None, "revision": hub.commit, "origin": found.origin})
    assert found.id == model
    assert found.origin == f"exact, from the Hub's GGUF headers at revision {hub.commit[:7]}"
    if ranges:
        asked = {path.rpartition("/")[2] for path, *_ in hub.asked}
        assert "imatrix_tiny.gguf" not in asked
        assert hub.bytes_sent < sum(map(len, files.values())) / 3
    hub.asked.clear()
    assert (await ask(model)).checkpoint == found
    assert hub.asked == []


async def test_without_a_tag_the_tags_are_listed_with_their_sizes(ask, files):
    reason = (await ask(MODEL)).reason
    assert isinstance(reason, FactError)
    assert reason.what.startswith(f"{MODEL}: has 2 GGUF models: Q4_K_M (")
    assert " kB)" in reason.what
    assert reason.do == f"Write it with its tag, such as {FOUR}."


async def test_an_unknown_tag_names_those_that_there_are(ask):
    reason = (await ask(f"{MODEL}:Q2_K")).reason
    assert isinstance(reason, FactError)
    assert reason.what == f"{MODEL}: has no GGUF model with the tag Q2_K."
    assert "UD-Q8_0" in reason.means


async def test_the_only_model_needs_no_tag(ask, files):
    for name in SHARDS:
        del files[name]
    found = (await ask(MODEL)).checkpoint
    assert found.id == FOUR
    assert found.gguf.mmproj == TOWER


async def test_a_damaged_header_is_refused_and_not_cached(ask, hub, files):
    files["tiny-Q4_K_M.gguf"] = b"GGUF" + bytes(300)
    found = await ask(FOUR)
    assert found.checkpoint is None
    assert "version 0" in found.reason.what
    assert list(hub_outline.outlines_directory().glob("*/*.jsonl")) == []


# --- staging ----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_tags_of_one_repository_are_staged_beside_each_other(hub, serve, machines, staging, files):
    endpoint = await serve(hub.app())
    nodes = ("n1", "n2")
    (staged,) = await staging(
        Need.model(FOUR.lower().replace("tests", "tests"), nodes), *nodes, endpoint=endpoint
    )
    mine = {"tiny-Q4_K_M.gguf", TOWER, "README.md"}
    assert hub.bytes_sent == sum(len(files[name]) for name in mine)
    for node in nodes:
        assert weights(machines.cache(node), hub.commit) == mine - {"README.md"}
        assert seen(machines, node) == {FOUR: True}
    await staging(Need.model(EIGHT, ("n1",)), *nodes, endpoint=endpoint)
    assert weights(machines.cache("n1"), hub.commit) == {*SHARDS, "tiny-Q4_K_M.gguf", TOWER}
    assert seen(machines, "n1") == {FOUR: True, EIGHT: True}
    # Again: nobody is asked, nothing moves; each is found by its tag and read from this directory.
    asked = len(hub.asked)
    (again,) = await staging(Need.model(FOUR, nodes), *nodes, endpoint="http://127.0.0.1:9")
    assert (again.commit, again.moved_bytes, len(hub.asked)) == (hub.commit, 0, asked)
    snapshot = resolve(MODEL, tag="UD-Q8_0", cache=machines.cache("n1"))
    assert read_checkpoint(snapshot, id=EIGHT).gguf.model == SHARDS[0]
    assert cached_snapshot(MODEL, "main", machines.cache("n2"), "UD-Q8_0") is None
    assert staged.paths["n1"] == str(snapshot)


@pytest.mark.integration
async def test_an_interrupted_copy_goes_on(hub, serve, machines, staging, files):
    content = files["tiny-Q4_K_M.gguf"]
    blobs = machines.cache("n1") / "models--tests--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(content).hexdigest()}.incomplete").write_bytes(content[:500_000])
    (staged,) = await staging(Need.model(FOUR, ("n1",)), "n1", endpoint=await serve(hub.app()))
    assert seen(machines, "n1") == {FOUR: True}
    assert staged.moved_bytes == len(content) - 500_000 + len(files[TOWER]) + len(files["README.md"])


@pytest.mark.integration
async def test_without_a_tag_several_models_are_refused_and_nothing_moves(hub, serve, machines, staging):
    with pytest.raises(StagingError, match="has 2 GGUF models"):
        await staging(Need.model(MODEL, ("n1",)), "n1", endpoint=await serve(hub.app()))
    assert hub.bytes_sent == 0


@pytest.mark.integration
async def test_a_tag_stays_usable_when_another_one_comes_from_a_newer_commit(
    hub, serve, machines, staging, files
):
    await staging(Need.model(FOUR, ("n1",)), "n1", endpoint=await serve(hub.app()))
    old, hub.commit = hub.commit, "f" * 40
    files["README.md"] = b"---\nlicense: mit\n---\nanother"
    await staging(Need.model(EIGHT, ("n1",)), "n1", endpoint=await serve(hub.app()))
    (again,) = await staging(Need.model(FOUR, ("n1",)), "n1", endpoint="http://127.0.0.1:9")
    assert (again.commit, again.moved_bytes) == (old, 0)
    assert resolve(MODEL, tag="Q4_K_M", cache=machines.cache("n1")).name == old
    assert resolve(MODEL, tag="UD-Q8_0", cache=machines.cache("n1")).name == hub.commit


@pytest.mark.integration
async def test_a_copy_of_another_tool_is_taken(hub, serve, machines, staging):
    """`hf download --include '*Q4_K_M*'` leaves links, blobs and refs/main, and no record of ours."""
    await staging(Need.model(FOUR, ("n1",)), "n1", endpoint=await serve(hub.app()))
    folder = machines.cache("n1") / "models--tests--tiny"
    next((folder / ".sparkfleet").iterdir()).unlink()
    (folder / "refs" / "main:Q4_K_M").unlink()
    assert seen(machines, "n1") == {FOUR: True}
    need = Need(wanted=StagingItem.model(FOUR), nodes=("n1", "n2"), hub="never")
    await staging(need, "n1", "n2")
    assert seen(machines, "n2") == {FOUR: True}


@pytest.mark.integration
async def test_one_tag_is_removed_and_the_other_stays(hub, serve, machines, staging, files):
    endpoint = await serve(hub.app())
    for model in (FOUR, EIGHT):
        await staging(Need.model(model, ("n1",)), "n1", endpoint=endpoint)
    cache = machines.cache("n1")
    freed = remove(RemoveRequest(name=FOUR, commit=hub.commit, cache=str(cache)), None).freed_bytes
    assert freed == len(files["tiny-Q4_K_M.gguf"])
    assert seen(machines, "n1") == {EIGHT: True}
    assert weights(cache, hub.commit) == {*SHARDS, TOWER}
    remove(RemoveRequest(name=EIGHT, commit=hub.commit, cache=str(cache)), None)
    assert not (cache / "models--tests--tiny").exists()


@pytest.mark.integration
async def test_both_tags_of_a_list_are_removed(hub, serve, machines, staging):
    """The removal of one is no use of the other, whose snapshot it shares."""
    endpoint = await serve(hub.app())
    for model in (FOUR, EIGHT):
        await staging(Need.model(model, ("n1",)), "n1", endpoint=endpoint)
    found = await survey(machines.channels("n1"), settings=machines.settings("n1"))
    cache = str(machines.cache("n1"))
    for one in found["n1"].everything:
        request = RemoveRequest(name=one.name, commit=one.commit, cache=cache, changed_ns=one.changed_ns)
        assert not remove(request, None).is_kept
    assert seen(machines, "n1") == {}


@pytest.mark.integration
async def test_models_list_has_a_row_for_each_tag(hub, serve, machines, staging):
    endpoint = await serve(hub.app())
    await staging(Need.model(FOUR, ("n1", "n2")), "n1", "n2", endpoint=endpoint)
    await staging(Need.model(EIGHT, ("n2",)), "n1", "n2", endpoint=endpoint)
    found: dict[str, NodeScan] = await survey(
        machines.channels("n1", "n2"), settings=machines.settings("n1", "n2")
    )
    rows = {row[0].name: sorted(row[1]) for row in grouped(found)}
    assert rows == {FOUR: ["n1", "n2"], EIGHT: ["n2"]}


@pytest.mark.integration
async def test_a_file_of_a_directory_is_copied_with_its_own_alone(machines, staging, files, tmp_path):
    """Its directory has another model, which is not part of it. (The nodes are one machine, so nothing moves.)"""
    directory = tmp_path / "models"
    directory.mkdir()
    for name in ("tiny-Q4_K_M.gguf", TOWER, "README.md"):
        (directory / name).write_bytes(files[name])
    (directory / "other-Q8_0.gguf").write_bytes(llama_gguf(Q8_0))
    (staged,) = await staging(Need.model(str(directory / "tiny-Q4_K_M.gguf"), ("n1", "n2")), "n1", "n2")
    assert staged.paths["n1"] == str(directory)
    found = scan(LookRequest(everything=True, cache=str(machines.cache("n1"))), None)
    (held,) = [one for one in found.everything if one.kind == "directory"]
    assert held.manifest is not None
    assert {file.path for file in held.manifest.files} == {"tiny-Q4_K_M.gguf", TOWER, "README.md"}
