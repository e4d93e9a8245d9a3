"""Arguments are read as the engine reads them: shares of the memory, KV caches, chunks of prefill."""

import pytest

from sparkfleet.planner.engine_args.engine_args import KvPool, chunk_given, pool_given, share_given
from sparkfleet.units import GIB


def test_a_share_is_the_engines_whose_flag_it_is():
    args = ("--gpu-memory-utilization=0.87", "--unheard-of")
    assert share_given(args, "vllm") == 0.87
    assert share_given(args, "sglang") is None


class TestChunks:
    @pytest.mark.parametrize(
        ("arg", "tokens"),
        [
            ("--max-num-batched-tokens=8192", 8192),
            ("--max-num-batched-tokens=8k", 8000),
            ("--max_num_batched_tokens=8K", 8192),
            ("--max_num_tokens=4096", 4096),
            ("--max-num-tokens=4k", None),  # click's int
            ("--chunked-prefill-size=4096", 4096),
            ("--chunked-prefill-size=4k", None),  # argparse's int
            ("--chunked-prefill-size=-1", 100_000_000),
            ("--chunked-prefill-size=0", 100_000_000),
        ],
    )
    def test_what_is_said(self, arg, tokens):
        assert chunk_given((arg,), arg.partition("=")[0].replace("_", "-")) == tokens

    @pytest.mark.parametrize(
        ("args", "tokens"),
        [
            (("--no-enable-chunked-prefill",), 100_000_000),
            (("--no-enable-chunked-prefill", "--max-num-batched-tokens=65536"), 65_536),
            (("--enable-chunked-prefill",), None),
        ],
    )
    def test_whole_prompts_of_vllm(self, args, tokens):
        assert chunk_given(args, "--max-num-batched-tokens") == tokens


class TestKvCache:
    @pytest.mark.parametrize(
        ("engine", "args", "pool"),
        [
            # vllm-project/vllm#47608: which numbers are human-readable, and what k, K, g and G are.
            (
                "vllm",
                ["--kv-cache-memory-bytes=21474836480"],
                KvPool("--kv-cache-memory-bytes=21474836480", 20 * GIB),
            ),
            ("vllm", ["--kv_cache_memory_bytes", "20G"], KvPool("--kv-cache-memory-bytes=20G", 20 * GIB)),
            ("vllm", ["--kv-cache-memory-bytes=1.5g"], KvPool("--kv-cache-memory-bytes=1.5g", 1_500_000_000)),
            # What vLLM's own log proposes (vllm-project/vllm#25204).
            ("vllm", ["--kv-cache-memory=1g"], KvPool("--kv-cache-memory=1g", 1_000_000_000)),
            # Blocks come before bytes (vLLM 0.32, v1/core/kv_cache_utils.py: override × bytes_per_block).
            (
                "vllm",
                ["--kv-cache-memory-bytes=1G", "--num-gpu-blocks-override=4096", "--block-size=16"],
                KvPool("--num-gpu-blocks-override=4096", tokens=65_536, blocks=True),
            ),
            # SGLang 0.5.12, server_args.py:435: swa_full_tokens_ratio is 0.8.
            (
                "sglang",
                ["--max-total-tokens=8192"],
                KvPool("--max-total-tokens=8192", tokens=8192, sliding=0.8),
            ),
            (
                "sglang",
                ["--max-total-tokens=8192", "--swa-full-tokens-ratio=0.5"],
                KvPool("--max-total-tokens=8192", tokens=8192, sliding=0.5),
            ),
            (
                "sglang",
                ["--max-total-tokens=8192", "--disable-hybrid-swa-memory"],
                KvPool("--max-total-tokens=8192", tokens=8192),
            ),
            ("sglang", ["--kv-cache-memory-bytes=1G"], None),
            ("vllm", ["--max-total-tokens=8192"], None),
            ("vllm", ["--gpu-memory-utilization=0.6"], None),
            ("trtllm", ["--kv_cache_free_gpu_memory_fraction=0.6"], None),
        ],
    )
    def test_what_is_said(self, engine, args, pool):
        assert pool_given(tuple(args), engine) == pool
