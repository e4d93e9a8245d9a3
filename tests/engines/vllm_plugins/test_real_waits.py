"""The bounds on vLLM's waits in vLLM's own message queue, found by vLLM as a plugin on Python's path."""

import importlib.util
import os
import subprocess
import sys

import pytest

from sparkfleet.engines.vllm_plugins.bounded_waits import SPIN
from sparkfleet.engines.vllm_plugins.rank_files import WAITS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("vllm_parsers"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]

QUEUE = """
import threading, time
from vllm.plugins import load_general_plugins
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition

load_general_plugins()
writer = MessageQueue(1, 1)
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
ready = threading.Thread(target=reader.wait_until_ready)
ready.start(); writer.wait_until_ready(); ready.join()
print(SpinCondition.is_bounded, reader._spin_condition.busy_loop_s)

time.sleep(0.1)
late = threading.Timer(0.3, writer.enqueue, ["one"])
late.start()
began = time.thread_time()
assert reader.dequeue(indefinite=True) == "one"
print(time.thread_time() - began)

writer._spin_condition.notify = lambda: None
late = threading.Timer(0.3, writer.enqueue, ["two"])
began = time.monotonic()
late.start()
assert reader.dequeue(indefinite=True) == "two"
print(time.monotonic() - began)
"""


def test_a_reader_sleeps_between_messages_and_finds_one_whose_wake_up_is_lost(tmp_path):
    for file in WAITS:
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_text(file.text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), SPIN: "0.002", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", QUEUE], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, spun_s, lost_s = done.stdout.splitlines()[-3:]
    assert found == "True 0.002"
    assert float(spun_s) < 0.1, "it spun for most of the 0.3 s"
    assert float(lost_s) < 2.5, "vLLM itself looks after 5 s, and before 0.27 never"
