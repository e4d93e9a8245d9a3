"""Parts of a start, from lines that engines print."""

import pytest

from sparkfleet.engines.startup_phases import StartupPhase, step_of
from sparkfleet.group.start.start_times import PARTS, StartTimes

VLLM = (
    (38.0, "INFO Starting to load model /models/m..."),
    (40.0, "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:40<00:40, 40.00s/it]"),
    (118.0, "Loading safetensors checkpoint shards: 100% Completed | 2/2 [01:20<00:00, 40.00s/it]"),
    (120.0, "INFO Model loading took 65.9 GiB memory and 82.1 seconds"),
    (131.0, "INFO Dynamo bytecode transform time: 9.87 s"),
    (160.0, "INFO torch.compile took 31.02 s in total"),
    (171.0, "Capturing CUDA graphs (decode, FULL):  33%|███▎ | 1/3 [00:01<00:02,  1.25it/s]"),
    (183.0, "INFO:     Application startup complete."),
)


def _seconds(lines, up, ready, began=0.0):
    times, step = StartTimes(began), None
    for now, line in lines:
        step = step_of(line) or step
        times.note(now, step)
    times.note_up(up)
    return times.seconds(ready)


def test_a_start_of_vllm_has_all_parts_in_their_order():
    found = _seconds(VLLM, 184.0, 197.5)
    assert found == {"engine": 38.0, "weights": 80.0, "kernels": 53.0, "warm-up": 13.0, "checks": 13.5}
    assert tuple(found) == PARTS


def test_a_draft_of_its_own_belongs_to_the_weights():
    draft = (
        (122.0, "INFO Loading drafter model... Loading weights"),
        (125.0, "INFO Model loading took 67.0 GiB memory and 87.1 seconds"),
    )
    found = _seconds((*VLLM[:4], *draft, *VLLM[4:]), 184.0, 197.5)
    assert (found["weights"], found["kernels"]) == (87.0, 46.0)


def test_the_end_of_sglangs_load_is_named_by_its_line():
    lines = (
        (30.0, "[2026-08-28 21:19:30] Load weight begin. avail mem=111.97 GB"),
        (150.0, "[2026-08-28 21:21:30] Load weight end. elapsed=120.1 s, type=Qwen3_5ForCausalLM"),
        (200.0, "Capturing batches (bs=4 avail_mem=40.1 GB):  25%|██▌ | 1/4 [00:03<00:09,  3.1s/it]"),
        (230.0, "The server is fired up and ready to roll!"),
    )
    assert _seconds(lines, 231.0, 240.0) == {
        "engine": 30.0, "weights": 120.0, "kernels": 50.0, "warm-up": 31.0, "checks": 9.0
    }  # fmt: skip


def test_parts_without_a_sign_take_no_time():
    lines = ((3.0, "srv  load_model: loading model '/models/m.gguf'"),)
    assert _seconds(lines, 25.0, 30.0) == {
        "engine": 3.0, "weights": 22.0, "kernels": 0.0, "warm-up": 0.0, "checks": 5.0
    }  # fmt: skip


def test_an_engine_that_shows_no_phase_has_no_times():
    assert _seconds(((5.0, "hello"),), 25.0, 30.0) == {}


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("INFO [cpu_model_runner.py:87] Warming up model for the compilation...", "compiling"),
        ("INFO JIT kernel warmup starting.", "warming"),
    ],
)
def test_a_warm_up_that_compiles_is_no_warm_up(line, phase):
    assert step_of(line) == StartupPhase(phase=phase)
