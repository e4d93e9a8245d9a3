"""Buffers of llama.cpp against those that llama-server b11434 logged without a GPU, for weights of zeros of each kind.

Each run had 4 slots of 16,384 tokens and passes of 2,048, `--no-kv-unified --flash-attn on`, if nothing else is said here.
"""

import pytest

from sparkfleet.perf.layers import Layers
from sparkfleet.perf.memory import llama_cpp
from sparkfleet.perf.memory.demand import demand
from sparkfleet.perf.memory.engine_sizes import MemoryConfig
from sparkfleet.perf.model_shape import ModelShape, ShapePart
from sparkfleet.perf.prediction import MemoryUse
from sparkfleet.units import MIB

DENSE = Layers(full=8, mlp=8, kv_elements=8 * 2 * 8 * 128)
"""Qwen3 with 8 layers of 8 KV heads of 128."""
SLIDING = Layers(
    full=4, sliding=4, moe=8, window=128, kv_elements=4 * 2 * 4 * 64, sliding_elements=4 * 2 * 4 * 64
)
"""gpt-oss with 8 layers of 4 KV heads of 64."""
HYBRID = Layers(
    full=2, linear=6, mlp=8, kv_elements=2 * 2 * 2 * 256, state_elements=6 * (32 * 128 * 128 + 3 * 8192)
)
"""Qwen3.5 with 6 layers of Gated DeltaNet and 2 of 2 KV heads of 256."""


def shape_of(layers, hidden):
    parts = (
        ShapePart(kind="embedding", params=1e6, active=0.0),
        ShapePart(kind="head", params=1e6, active=1e6),
    )
    return ModelShape(name="zeros", hidden=hidden, vocab=151_936, parts=parts, layers=layers)


def run_of(**fields):
    given = {"context": 16_384, "concurrency": 4, "kv_bytes": 2.0, "chunk": 2048, **fields}
    return MemoryConfig(engine="llama.cpp", **given)


@pytest.mark.parametrize(
    ("layers", "fields", "logged_mib"),
    [
        (DENSE, {}, 2048.0),
        (DENSE, {"context": 65_536}, 8192.0),
        (DENSE, {"concurrency": 1}, 512.0),
        (DENSE, {"context": 8192, "concurrency": 16}, 4096.0),
        (SLIDING, {}, 256.0 + 36.0),
        (HYBRID, {}, 256.0),
    ],
)
def test_keys_and_values_are_what_the_engine_allocates(layers, fields, logged_mib):
    assert llama_cpp.kv_bytes(shape_of(layers, 1024), run_of(**fields)) / MIB == logged_mib


def test_a_sliding_layer_has_room_for_its_window_and_a_pass():
    """ "creating SWA KV cache, size = 2304 cells"."""
    assert llama_cpp.window_cells(shape_of(SLIDING, 768), run_of()) == 2304
    assert llama_cpp.window_cells(shape_of(SLIDING, 768), run_of(context=1000)) == 1024


def test_states_are_in_32_bits_one_more_per_draft_token():
    """ "R (f32): 2.25 MiB, S (f32): 48.00 MiB" for 4 slots."""
    shape = shape_of(HYBRID, 1024)
    assert llama_cpp.state_bytes(shape, run_of()) / MIB == 2.25 + 48.0
    assert llama_cpp.state_bytes(shape, run_of(method="mtp", k=3)) == 4 * llama_cpp.state_bytes(
        shape, run_of()
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "fields", "logged_mib"),
    [
        (DENSE, 1024, {}, 176.07),
        (DENSE, 1024, {"chunk": 512}, 44.02),
        (DENSE, 1024, {"context": 65_536}, 368.07),
        (DENSE, 1024, {"context": 8192, "concurrency": 16}, 144.07),
        (SLIDING, 768, {}, 175.10),
        (HYBRID, 1024, {}, 240.84),
    ],
)
def test_the_compute_buffer_is_within_its_band(layers, hidden, fields, logged_mib):
    low, mid, high = (
        size / MIB for size in llama_cpp.compute_bytes(shape_of(layers, hidden), run_of(**fields))
    )
    assert low <= logged_mib <= high
    assert abs(mid / logged_mib - 1) < 0.3


def test_the_mask_grows_with_the_tokens_of_a_slot():
    """4 KiB per token at passes of 2,048: 176 MiB at 16,384, 368 at 65,536."""
    shape = shape_of(DENSE, 1024)
    short, long = (llama_cpp.compute_bytes(shape, run_of(context=size))[1] for size in (16_384, 65_536))
    assert (long - short) / MIB == 192.0


def test_slots_keep_copies_of_what_cannot_be_rolled_back():
    assert llama_cpp.checkpoint_bytes(shape_of(DENSE, 1024), run_of()) == 0
    hybrid = shape_of(HYBRID, 1024)
    assert llama_cpp.checkpoint_bytes(hybrid, run_of()) == 2 * 4 * llama_cpp.one_state_bytes(hybrid)


def test_a_tied_embedding_is_there_twice():
    tied = shape_of(DENSE, 1024).model_copy(
        update={
            "parts": (
                ShapePart(kind="embedding", params=1e9, active=0.0),
                ShapePart(kind="head", params=0.0, active=1e9),
            )
        }
    )
    found = demand(tied, run_of())
    assert (found.of(MemoryUse.WEIGHTS), found.of(MemoryUse.LOADING)) == (2e9, 2e9)
    assert demand(shape_of(DENSE, 1024), run_of()).of(MemoryUse.LOADING) == 0


HEAD = Layers(full=1, mlp=1, kv_elements=2 * 8 * 128)
"""One layer of 8 KV heads of 128."""


@pytest.mark.parametrize(
    ("method", "layers", "mib"),
    [
        ("mtp", None, 256.0),  # one layer like the model's
        ("eagle3", None, 256.0),
        ("draft", None, 256.0),
        ("dflash", None, 5 * 256.0),
        ("dspark", None, 5 * 256.0),
        ("eagle3", HEAD, 256.0),
        ("draft", DENSE, 2048.0),
        ("none", None, 0.0),
        ("ngram", None, 0.0),
    ],
)
def test_the_context_that_drafts_has_a_cache_of_its_own_in_16_bits(method, layers, mib):
    draft = None if layers is None else shape_of(layers, 512)
    for kv_bytes in (2.0, 34 / 32):
        run = run_of(method=method, k=3, draft=draft, kv_bytes=kv_bytes)
        assert llama_cpp.draft_kv_bytes(shape_of(DENSE, 1024), run) / MIB == mib


@pytest.mark.parametrize(
    ("method", "states"), [("eagle3", 4), ("dflash2", 4), ("draft", 1), ("ngram", 1), ("none", 1)]
)
def test_states_that_can_be_rolled_back_are_kept_and_others_copied(method, states):
    hybrid, run = shape_of(HYBRID, 1024), run_of(method=method, k=3)
    plain = llama_cpp.one_state_bytes(hybrid) * 4
    assert llama_cpp.state_bytes(hybrid, run) == states * plain
    copies = 3 if method in ("draft", "ngram") else 2
    assert llama_cpp.checkpoint_bytes(hybrid, run) == copies * plain


def test_a_drafts_file_and_its_graph_are_counted():
    target, draft = shape_of(DENSE, 1024), shape_of(HEAD, 1024)
    alone, both = demand(target, run_of()), demand(target, run_of(method="draft", k=3, draft=draft))
    assert both.of(MemoryUse.DRAFTER) == draft.bytes
    assert alone.of(MemoryUse.DRAFTER) == alone.of(MemoryUse.DRAFT_KV) == 0
    assert both.of(MemoryUse.ACTIVATIONS) > 1.9 * alone.of(MemoryUse.ACTIVATIONS)
    assert demand(target, run_of(method="eagle3", k=3, draft_size=1e9)).of(MemoryUse.DRAFTER) == 1e9


def test_a_draft_that_reads_the_models_layers_has_their_inputs():
    """2,048 tokens of three layers of 1,024, in 32 bits."""
    shape = shape_of(DENSE, 1024)
    eagle, mtp = (
        llama_cpp.compute_bytes(shape, run_of(method=method, k=3))[1] for method in ("eagle3", "mtp")
    )
    assert (eagle - mtp) / MIB == 24.0
