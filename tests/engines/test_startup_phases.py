import pytest

from sparkfleet.engines.startup_phases import StartupPhase, latest, step_of

SHARDS = "Loading safetensors checkpoint shards:  42% Completed | 5/12 [00:10<00:14,  2.01s/it]"
BATCHES = "Capturing batches (bs=128 avail_mem=57.52 GB):   0%|          | 0/20 [00:00<?, ?it/s]"
BAR = "\r  0%|  | 0/3 [00:00<?, ?it/s]Capturing batches (bs=4 avail_mem=61.37 GB):  33%|███▎ | 1/3 [00:00<00:01,  1.2it/s]"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("INFO 11-20 09:00:01 [gpu_model_runner.py:5040] Starting to load model /m...", StartupPhase(phase="loading")),
        (SHARDS, StartupPhase(phase="loading", share=0.42)),
        ("INFO [default_loader.py:502] Loading weights took 6.31 seconds", StartupPhase(phase="loading")),
        ("[2026-08-28 21:19:30] Load weight begin. avail mem=111.97 GB", StartupPhase(phase="loading")),
        ("INFO [backends.py:1167] Dynamo bytecode transform time: 8.72 s", StartupPhase(phase="compiling")),
        ("INFO [monitor.py:20] torch.compile took 31.02 s in total", StartupPhase(phase="compiling")),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|█████     | 2/4",
            StartupPhase(phase="warming", share=0.5),
        ),
        (BATCHES, StartupPhase(phase="warming", share=0.0)),
        (BAR, StartupPhase(phase="warming", share=0.33)),
        ("INFO:     Application startup complete.", StartupPhase(phase="up")),
        ("[2026-06-01 08:01:30] The server is fired up and ready to roll!", StartupPhase(phase="up")),
        ("0.00.007.043 I srv    load_model: loading model '/models/m.gguf'", StartupPhase(phase="loading")),
        (
            "0.00.039.338 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'",
            StartupPhase(phase="warming"),
        ),
        ("0.00.042.553 I srv  llama_server: listening on http://127.0.0.1:4777", StartupPhase(phase="up")),
        ("0.00.004.903 I srv  llama_server: initializing ...", None),
        ("INFO 11-20 09:00:01 [api_server.py:1] vLLM API server version 0.32.0", None),
        ("INFO [core.py:1] Initializing an engine with config: {'cudagraph_num_of_warmups': 0}", None),
        ("INFO [flashinfer.py:1] Warming up the kernels", StartupPhase(phase="warming")),
        (
            "Multi-thread loading shards:  25% Completed | 1/4 [00:00<00:02,  1.29it/s]",
            StartupPhase(phase="loading", share=0.25),
        ),
        (
            "Loading safetensors using Fastsafetensor loader:  19% Completed | 8/42 [00:00<00:02, 11.98it/s]",
            StartupPhase(phase="loading", share=0.19),
        ),
        ("Loading safetensors weights in parallel:  50%|█████     | 2/4", StartupPhase(phase="loading", share=0.5)),
        ("INFO [backends.py:1089] Using cache directory: /k for vLLM's torch.compile", StartupPhase(phase="compiling")),
        ("INFO [kernel_warmup.py:368] Running FlashInfer autotune with 2048 tokens", StartupPhase(phase="compiling")),
        ("[2026-08-28 21:20:01] Entering DeepGEMM JIT Pre-Compile session. It may take", StartupPhase(phase="compiling")),
        ("[2026-08-28 21:20:01] Capture target verify CUDA graph begin.", StartupPhase(phase="warming")),
        ("", None),
    ],
)  # fmt: skip
def test_the_phase_in_a_line(line, step):
    assert step_of(line) == step


BEFORE_IT_LOADS = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='/m', kernel_config=KernelConfig(enable_jit_warmup=True,"
    " enable_flashinfer_autotune=True, moe_backend='auto')",
    "server_args=ServerArgs(model_path='/m', disable_flashinfer_autotune=False, skip_server_warmup=False, warmups=None)",
    "WARNING [vllm.py:1704] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
    "UserWarning: Failed to JIT torch c dlpack extension, EnvTensorAllocator will not be enabled.",
    "2026-08-28 21:19:12,925 - INFO - flashinfer.jit: Prebuilt kernels not found, using JIT backend",
    "[2026-08-28 21:19:13] Persistent cache disabled, using in-memory JIT cache",
    "INFO [qwen_gdn_linear_attn.py:229] FlashInfer GDN prefill is JIT-compiled; first run may take a while.",
)
"""First lines of real engines. Taken for compiling, it would hide how far they are with loading."""


@pytest.mark.parametrize("line", BEFORE_IT_LOADS)
def test_a_printed_configuration_is_no_later_phase(line):
    assert latest([line, SHARDS]) == StartupPhase(phase="loading", share=0.42)


def test_an_engine_does_not_go_back():
    assert latest([SHARDS, BATCHES, SHARDS]) == StartupPhase(phase="warming", share=0.0)
    assert latest(["nothing"], StartupPhase(phase="up")) == StartupPhase(phase="up")
    assert latest([]) is None


@pytest.mark.parametrize(
    "line", ["Application startup complete.", "The server is fired up and ready to roll!"]
)
def test_an_engine_that_is_up_is_known_by_its_own_words(line):
    assert step_of(line) == StartupPhase(phase="up")


def test_a_hostile_line_is_looked_at_from_its_end():
    assert step_of("9" * 1_000_000 + "% Completed checkpoint shards") is not None
