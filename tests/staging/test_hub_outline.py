"""Facts of checkpoints at the Hub: exact without a byte of weights, cached, and harmless whatever the Hub sends."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
from tiny_llama import LLAMA, Weights, llama_weights, safetensors

from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.errors import FactError
from sparkfleet.staging import hub_outline
from sparkfleet.staging.errors import HubUnreachable, ModelMiscased, StagingError
from sparkfleet.staging.hub_outline import AtHub, at_hub, outlines_directory

MODEL = "tests/tiny"
NORM = ("model.norm.weight", "BF16", (64,))
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard_of(weights: Weights) -> bytes:
    header, data_bytes = safetensors(weights)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"w" * data_bytes


@pytest.fixture
def files() -> dict[str, bytes]:
    """A Llama of two shards, and what is beside it."""
    weights = llama_weights()
    parts = dict(
        zip(SHARDS, (weights[:10], weights[10:]), strict=True)
    )  # the embedding and one layer; the rest
    weight_map = {name: file for file, part in parts.items() for name, _, _ in part}
    return {
        "config.json": json.dumps(LLAMA).encode(),
        "generation_config.json": b'{"temperature": 0.7}',
        "README.md": b"---\nlicense: mit\n---\n",
        **{file: shard_of(part) for file, part in parts.items()},
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "consolidated.safetensors": b"x" * 1000,
        "original/model.safetensors": b"x" * 1000,
        "tokenizer.json": b"{}",
    }


@pytest.fixture
async def ask(hub, serve, machines, monkeypatch):
    """ask(model) → what the Hub on loopback has of it."""
    monkeypatch.setenv("HF_ENDPOINT", await serve(hub.app()))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/does/not/exist")
    monkeypatch.setattr(hub_outline, "FIRST_BYTES", 200)  # so that headers take a second request

    async def run(model: str = MODEL) -> AtHub:
        return await asyncio.to_thread(at_hub, model)

    return run


def asked(hub) -> list[str]:
    return [path.rpartition("/")[2] for path, _, _ in hub.asked]


async def test_facts_are_those_of_the_files_and_no_weights_are_read(ask, hub, files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = (await ask()).checkpoint
    same = {"path": None, "id": MODEL, "revision": hub.commit, "origin": found.origin}
    assert found == read_checkpoint(tmp_path).model_copy(update=same)
    assert found.weights_known
    assert found.origin == f"exact, from the Hub's safetensors headers at revision {hub.commit[:7]}"
    assert hub.bytes_sent < sum(map(len, files.values())) / 10
    assert {"tokenizer.json", "consolidated.safetensors", "model.safetensors"}.isdisjoint(asked(hub))


async def test_one_file_without_an_index(ask, hub, files):
    for name in (*SHARDS, "model.safetensors.index.json"):
        del files[name]
    files["model.safetensors"] = shard_of(llama_weights())
    assert (await ask()).checkpoint.weights_known


async def test_a_name_in_another_case_is_refused_with_the_hubs_own(ask):
    """The Hub answers it, and a cache on a node has the weights a second time under it."""
    found = await ask("Tests/TINY")
    assert found.checkpoint is None
    assert isinstance(found.reason, ModelMiscased)
    assert found.reason.what.startswith("Tests/TINY is tests/tiny at ")
    assert found.reason.do == "Write tests/tiny."
    assert (await ask()).reason is None


async def test_the_second_plan_asks_nothing(ask, hub):
    first = await ask()
    hub.asked.clear()
    assert await ask() == first
    assert hub.asked == []


async def test_offline_the_cache_answers_however_old(ask, hub, monkeypatch):
    first = await ask()
    hub.asked.clear()
    age(time.time() - 30 * 24 * 3600)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await ask() == first
    assert await ask("tests/another") == AtHub()
    assert hub.asked == []


def age(at_s: float) -> None:
    (ref,) = outlines_directory().glob("*/refs/main")
    os.utime(ref, (at_s, at_s))


async def test_after_an_hour_only_the_commit_is_requested(ask, hub):
    first = await ask()
    hub.asked.clear()
    age(time.time() - 2 * 3600)
    assert await ask() == first
    assert asked(hub) == ["main"]


async def test_a_hub_that_is_away_later_changes_nothing(ask, hub, monkeypatch):
    first = await ask()
    age(time.time() - 2 * 3600)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert await ask() == first


async def test_a_commit_is_read_from_the_cache_for_ever(ask, hub):
    first = await ask(f"{MODEL}@{hub.commit}")
    hub.asked.clear()
    assert await ask(f"{MODEL}@{hub.commit}") == first
    assert hub.asked == []


async def test_a_damaged_cache_is_read_again_from_the_hub(ask):
    first = await ask()
    (kept,) = outlines_directory().glob("*/*.jsonl")
    kept.write_bytes(kept.read_bytes()[:-100])
    assert await ask() == first
    kept.write_bytes(b"x" * 1000)
    assert await ask() == first


async def test_without_safetensors_the_config_alone_is_read(ask, files):
    for name in (*SHARDS, "model.safetensors.index.json", "consolidated.safetensors"):
        del files[name]
    found = (await ask()).checkpoint
    assert not found.weights_known
    assert "no safetensors" in found.origin


@pytest.mark.parametrize(
    "shard",
    [
        (1 << 40).to_bytes(8, "little") + b"{}",
        (90_000_000).to_bytes(8, "little") + b"{}",
        b"\0" * 7,
        b"",
        (2).to_bytes(8, "little") + b"[]",
        (4000).to_bytes(8, "little") + b"[" * 4000,
        shard_of([NORM])[:-1],
        shard_of([NORM]) + b"more",
        shard_of([("another.weight", "BF16", (1 << 10, 1))]),
    ],
)
async def test_headers_that_are_none_leave_the_config(ask, files, shard):
    files[SHARDS[1]] = shard
    found = await ask()
    assert isinstance(found.reason, FactError | StagingError)
    assert not found.checkpoint.weights_known
    assert found.checkpoint.origin.startswith("config alone at revision 0123456, estimated: ")
    assert list(outlines_directory().glob("*/*.jsonl")) == []


@pytest.mark.parametrize(
    "weight_map", [{"a": "../../../etc/passwd"}, {"a": "/etc/passwd"}, {"a": 1}, {}, [], {"a": "absent"}]
)
async def test_an_index_that_leads_elsewhere_leaves_the_config(ask, hub, files, weight_map):
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    found = await ask()
    assert found.reason is not None
    assert not found.checkpoint.weights_known
    assert all("passwd" not in path for path, _, _ in hub.asked)


async def test_shorter_files_than_listed(ask, hub, files):
    hub.served[SHARDS[0]] = files[SHARDS[0]][:100]
    found = await ask()
    assert "bytes of model-00001" in found.reason.what
    assert not found.checkpoint.weights_known


async def test_a_server_without_ranges_is_read_no_further_than_needed(ask, hub):
    hub.ranges, hub.endless = False, frozenset(SHARDS)
    assert (await ask()).checkpoint.weights_known


@pytest.mark.parametrize(
    "config", [b"", b"[]", b"{}", b"<html>", b'{"model_type": "llama", "hidden_size": -1}']
)
async def test_an_invalid_config_is_a_reason(ask, files, config):
    files["config.json"] = config
    found = await ask()
    assert found.checkpoint is None
    assert isinstance(found.reason, FactError)


async def test_gated_names_the_page_of_the_licence(ask, hub):
    hub.refusal = (403, "GatedRepo")
    found = await ask()
    assert found.checkpoint is None
    assert "Accept the licence at http://127.0.0.1" in found.reason.do


async def test_a_hub_that_does_not_answer_is_waited_for_once(ask, hub, monkeypatch, serve):
    from aiohttp import web

    async def silent(_):
        asking.append(1)
        await asyncio.sleep(30)

    asking: list[int] = []
    app = web.Application()
    app.router.add_get("/{tail:.*}", silent)
    monkeypatch.setenv("HF_ENDPOINT", await serve(app))
    monkeypatch.setattr(hub_outline, "FIRST_S", 3.0)
    begun = time.monotonic()
    first, second = await ask(), await ask("tests/another")
    assert isinstance(first.reason, HubUnreachable)
    assert isinstance(second.reason, HubUnreachable)
    assert asking == [1]
    assert time.monotonic() - begun < 5.9


async def test_headers_that_take_too_long_leave_the_config(ask, hub, monkeypatch):
    hub.hold[SHARDS[0]] = asyncio.Event()
    monkeypatch.setattr(hub_outline, "ALL_S", 1.0)
    found = await ask()
    assert isinstance(found.reason, HubUnreachable)
    assert not found.checkpoint.weights_known
    hub.hold[SHARDS[0]].set()


async def test_an_invalid_hub_id_is_not_requested(ask, hub):
    assert await ask("/models/tiny") == AtHub()
    assert await ask("../x") == AtHub()
    assert hub.asked == []


@pytest.mark.parametrize("name", ["modules.json", "config_sentence_transformers.json"])
async def test_an_embedding_model_is_refused_and_not_estimated(ask, files, name):
    files[name] = b"[]"
    found = await ask()
    assert found.checkpoint is None
    assert f"by its file {name}" in found.reason.what
    assert "engine: custom" in found.reason.do
