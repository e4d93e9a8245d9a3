"""vLLM's own classes of the KV cache on the disk, with our pruner beneath them, and its own check of our flags.

The whole needs a GPU: the worker that copies blocks refuses any other device. All that is between the scheduler and the
disk is real here. A process of its own, so that nothing of an engine stays in this one.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from sparkfleet.engines.registry import engine_by_name

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("vllm_parsers"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]

METRICS = ("vllm:kv_offload_tiering_read_bytes", "vllm:kv_offload_tiering_write_bytes")
"""Series that docs/kv-disk.md names."""

WORLD = """
import hashlib, json, os, sys, time
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig)
from vllm.v1.kv_offload.tiering.base import ScheduleEndContext
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from sparkfleet.runtime.files import kv_pruner
from sparkfleet.runtime.files.kv_pruner import KvPruner

KEY, BLOCK = sys.argv[1], 8192
kv_pruner._space = lambda root: (1 << 40, 0)

class Engine:
    "The scheduler's side of one engine, with a pool of so many blocks."
    def __init__(self, blocks):
        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(16, ("l0",), 0),), worker_kv_bytes_per_block=BLOCK,
            enable_kv_cache_events=False,
            extra_config={"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": BLOCK * blocks,
                          "secondary_tiers": [{"type": "fs", "root_dir": KEY}]},
            engine_id=f"kvdisk{os.getpid()}{time.monotonic_ns()}", model=OffloadingModelConfig("m", "bfloat16"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False))
        self.manager = TieringOffloadingSpec(config).get_manager()
        self.view = self.manager.primary_tier.get_kv_memoryview().cast("B")
        self.requests = 0
    def request(self):
        self.requests += 1
        context = ReqContext(req_id=str(self.requests))
        self.manager.on_new_request(context)
        return context
    def step(self):
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        time.sleep(0.01)
    def settle(self):
        while self.manager.has_pending_work():
            self.step()
    def store(self, keys):
        context = self.request()
        stored = self.manager.prepare_store(keys, context)
        for key, at in zip(stored.keys_to_store, stored.store_spec.chunk_ids):
            self.view[int(at) * BLOCK:(int(at) + 1) * BLOCK] = content(key)
        self.manager.complete_store(stored.keys_to_store, context, True)
        self.settle()
        self.manager.on_request_finished(context)
    def load(self, keys, steps=200):
        "Blocks of the prefix as the scheduler counts them (_maximal_prefix_lookup), and their bytes; None if it waits on."
        context = self.request()
        for _ in range(steps):
            hits, waits = 0, False
            for key in keys:
                found = self.manager.lookup(key, context)
                if found is LookupResult.MISS:
                    break
                waits = waits or found is not LookupResult.HIT
                hits += found is not LookupResult.RETRY
            if not waits:
                right = True
                if hits:
                    spec = self.manager.prepare_load(keys[:hits], context)
                    right = all(bytes(self.view[int(at) * BLOCK:(int(at) + 1) * BLOCK]) == content(key)
                                for key, at in zip(keys, spec.chunk_ids))
                    self.manager.complete_load(keys[:hits], context)
                self.settle()
                self.manager.on_request_finished(context)
                return hits, right
            self.step()
        return None
    def end(self):
        self.view.release()
        self.manager.shutdown()

def content(key):
    return hashlib.sha256(bytes(key)).digest() * (BLOCK // 32)

def keys_of(prompt, blocks):
    return [make_offload_key(hashlib.sha256(f"{prompt} {n}".encode()).digest(), 0) for n in range(blocks)]

def files():
    return sorted(os.path.join(at, name) for at, _, names in os.walk(KEY) for name in names if name.endswith(".bin"))

def file_of(engine, key):
    return engine.manager.secondary_tiers[0].file_mapper.get_file_name(key)

def answer(**found):
    print("RESULT", json.dumps(found))
"""

AFTER_A_RESTART = """
pruner = KvPruner(KEY, 1 << 30)
pruner.begin()
first = Engine(40)
prompt = keys_of("long", 30)
first.store(prompt)
first.end()
second = Engine(40)
found = second.load(prompt)
strange = second.load(keys_of("other", 30))
second.end()
partial = [name for _, _, names in os.walk(KEY) for name in names if name.endswith(".tmp")]
answer(found=found, strange=strange, files=len(files()), partial=partial)
"""

BENEATH = """
pruner = KvPruner(KEY, 40 * BLOCK)
pruner.begin()
engine = Engine(70)
old, new = keys_of("old", 30), keys_of("new", 30)
engine.store(old)
for path in files():
    os.utime(path, (1e9, 1e9))
engine.store(new)
done = pruner.run()
kept = len(files())
engine.end()
engine = Engine(70)
gone, there = engine.load(old), engine.load(new)
engine.store(old)  # computed again: stored again
engine.end()
engine = Engine(70)
again = engine.load(old)
# A block that goes between the look at it and its load, and a short one.
engine.end()
engine = Engine(70)
context = engine.request()
while engine.manager.lookup(old[0], context) is LookupResult.RETRY:
    engine.step()
os.unlink(file_of(engine, old[0]))
engine.settle()
between = engine.load(old)
engine.end()
with open(file_of(engine, new[4]), "r+b") as short:
    short.truncate(BLOCK // 2)
engine = Engine(70)
cut = engine.load(new)
engine.end()
answer(removed=done.removed, kept=kept, gone=gone, there=there, again=again, between=between, cut=cut,
       short_is_gone=not os.path.exists(file_of(engine, new[4])))
"""

WHILE_IT_WRITES = """
import threading
pruner = KvPruner(KEY, 20 * BLOCK)
pruner.begin()
engine, failed = Engine(400), []
def prune():
    while not done.is_set():
        try:
            pruner.run()
        except Exception as error:
            failed.append(repr(error))
done = threading.Event()
thread = threading.Thread(target=prune)
thread.start()
wrong = 0
for number in range(40):
    keys = keys_of(f"prompt {number}", 10)
    engine.store(keys)
    engine.manager.reset_cache()
    found = engine.load(keys)
    wrong += found is None or not found[1]
done.set()
thread.join()
last = pruner.run()
engine.end()
answer(failed=failed, wrong=wrong, used=last.used)
"""

SMALL_POOL = """
engine = Engine(40)
prompt = keys_of("long", 30)
engine.store(prompt)
engine.end()
found = []
for blocks in (30, 29, 20):
    engine = Engine(blocks)
    found.append(engine.load(prompt))
    engine.end()
answer(found=found)
"""

CONFIG = """
import json, sys
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(json.load(sys.stdin))
args = AsyncEngineArgs.from_cli_args(parsed)
kv = args.kv_transfer_config
spec = OffloadingSpecFactory.get_spec_cls(kv.kv_connector_extra_config)
metrics = spec.build_metric_definitions(kv.kv_connector_extra_config)
class Model:
    enable_cumem_allocator = args.enable_cumem_allocator
class Config:
    kv_transfer_config, model_config = kv, Model
def verdict():
    try:
        VllmConfig._verify_kv_transfer_compat(Config)
    except ValueError as error:
        return str(error)
    return "accepted"
with_it = verdict()
Model.enable_cumem_allocator = False
print("RESULT", json.dumps([KVConnectorFactory.get_connector_class(kv).__name__, spec.__name__, with_it, verdict(),
                            kv.kv_connector_extra_config, sorted(metrics)]))
"""


def run(program, *args, text="", **env):
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "VLLM_LOGGING_LEVEL": "ERROR", **env},
        timeout=240,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert found, done.stderr[-3000:]
    return json.loads(found[-1].removeprefix("RESULT ")), done.stderr


@pytest.fixture
def key(tmp_path):
    return str(tmp_path / "kv" / "chat" / "0123")


@pytest.mark.full
def test_blocks_come_back_after_a_restart(key):
    found, _ = run(WORLD + AFTER_A_RESTART, key)
    assert found == {"found": [30, True], "strange": [0, True], "files": 30, "partial": []}


def test_files_that_are_removed_beneath_an_engine_are_misses(key):
    found, errors = run(WORLD + BENEATH, key)
    assert found == {
        "removed": 24 * 8192, "kept": 36,
        "gone": [0, True], "there": [30, True], "again": [30, True],
        "between": [0, True],
        "cut": [4, True], "short_is_gone": True,
    }, errors[-2000:]  # fmt: skip


@pytest.mark.full
def test_an_engine_that_writes_while_files_are_removed_gets_no_wrong_block(key):
    found, errors = run(WORLD + WHILE_IT_WRITES, key)
    assert (found["failed"], found["wrong"]) == ([], 0), errors[-2000:]
    assert found["used"] <= 20 * 8192


@pytest.mark.full
def test_a_prompt_that_is_longer_than_the_pool_waits_without_end_or_gets_nothing(key):
    """The reason for the pool's size in plans. Once a release loads a part, `staging_bytes` can be smaller."""
    found, _ = run(WORLD + SMALL_POOL, key)
    whole, *less = found["found"]
    assert whole == [30, True]
    assert all(one in (None, [0, True]) for one in less), less


@pytest.mark.full
def test_vllm_accepts_our_flags_and_refuses_them_without_the_cumem_allocator(candidate, context, tmp_path):
    one = candidate(kv_disk_bytes=10**11, kv_staging_bytes=10**10, runtime="container", image="i")
    launch = engine_by_name("vllm").launch(
        one, context(kv_dir="/state/kv/chat/0123", model_path=str(tmp_path))
    )
    argv = ["--model", *launch.argv[launch.argv.index("serve") + 1 :]]
    (connector, spec, with_it, without, extra, metrics), _ = run(
        CONFIG, text=json.dumps(argv), PYTORCH_CUDA_ALLOC_CONF=dict(launch.env)["PYTORCH_CUDA_ALLOC_CONF"]
    )
    assert (connector, spec) == ("OffloadingConnector", "TieringOffloadingSpec")
    assert with_it == "accepted"
    assert "unless enable_cumem_allocator" in without
    assert extra["cpu_bytes_to_use"] == 10**10
    assert extra["secondary_tiers"] == [{"type": "fs", "root_dir": "/state/kv/chat/0123"}]
    assert set(METRICS) <= set(metrics), metrics
