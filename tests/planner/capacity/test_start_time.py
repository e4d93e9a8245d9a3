"""Predicted starts, by themselves and held against every published one that was found (`pytest … -s` prints them)."""

from statistics import median

import pytest

from sparkfleet.knowledge.published.published_starts import PublishedStart, published_starts
from sparkfleet.planner.capacity.start_time import StartSeconds, predicted_start
from sparkfleet.planner.types.plan import READ_FILES, Candidate, GroupShape
from sparkfleet.units import GB


def _candidate(engine="vllm", ranks=1, **fields):
    names = tuple(f"spark{n + 1}" for n in range(ranks))
    fields = {"model": "org/m", "engine_version": "0.32.0", "context": 4096, "concurrency": 4, **fields}
    return Candidate(engine=engine, shape=GroupShape(nodes=names, tp=ranks), **fields)


def _start(engine="vllm", gb=80.0, ranks=1, **fields):
    return predicted_start(_candidate(engine, ranks, **fields), gb * GB)


def test_it_is_the_sum_of_its_parts():
    found = _start()
    assert found.weights.mid == pytest.approx(500, rel=0.01)
    parts = (found.engine, found.weights, found.warm_up)
    for at in range(3):
        rest = sum(part[at] for part in parts)
        assert found.first[at] == pytest.approx(rest + found.kernels_first[at])
        assert found.later[at] == pytest.approx(rest + found.kernels_later[at])
    assert found.later.low < found.later.mid < found.later.high


def test_mapped_weights_are_split_and_files_are_read_by_every_rank():
    assert _start(ranks=2).weights.mid == pytest.approx(_start().weights.mid / 2)
    one, two = _start(mmap=False), _start(mmap=False, ranks=2)
    assert one.weights == two.weights
    assert one.weights.mid < _start(ranks=2).weights.mid
    assert _start(engine_args=(READ_FILES,)).weights == one.weights


def test_an_eager_start_compiles_nothing_and_captures_no_graphs():
    found = _start(engine_args=("--enforce-eager",))
    assert found.first == found.later
    assert found.warm_up == StartSeconds(0, 0, 0)


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("trtllm", {}),
        ("custom", {}),
        ("vllm", {"device": "cpu"}),
        ("vllm", {"gb": 0}),
        ("vllm", {"engine_args": ("--load-format=fastsafetensors",)}),
        ("vllm", {"engine_args": ("--load-format", "b12x")}),
        ("sglang", {"engine_args": ("--weight-loader-disable-mmap",)}),
    ],
)
def test_nothing_is_predicted_of_what_nobody_measured(engine, fields):
    assert _start(engine, **fields) is None


def test_loaders_that_map_are_named_or_not():
    assert _start(engine_args=("--load-format=safetensors",)) == _start()
    assert _start("sglang", engine_args=("--load-format", "auto")) == _start("sglang")


def test_a_start_of_llama_cpp_is_its_weights():
    found = _start("llama.cpp", gb=63.4)
    assert found.first == found.later
    assert found.later.mid < 40


def _predicted(one: PublishedStart) -> StartSeconds:
    found = _start(one.engine, one.gb, one.ranks, mmap=one.loader != "read")
    if one.part == "start":  # of unknown caches
        return StartSeconds(found.later.low, (found.later.mid + found.first.mid) / 2, found.first.high)
    return getattr(found, one.part)


def _error(one: PublishedStart) -> float:
    """Predicted over published, less 1; 0 within a published range."""
    low, high = one.seconds
    mid = _predicted(one).mid
    return mid / min(max(mid, low), high) - 1


def test_published_starts_are_within_the_band_and_their_median_error_is_small():
    lines, outside = [], []
    for one in published_starts():
        band = _predicted(one)
        if band.high < one.seconds[0] or band.low > 1.02 * one.seconds[1]:  # rates have two digits
            outside.append(one.what)
        lines.append(
            f"{one.engine:9} {one.part:7} {one.seconds[0]:4.0f} to {one.seconds[1]:4.0f}"
            f"  predicted {band.mid:4.0f} ({band.low:.0f}–{band.high:.0f})  {_error(one):+5.0%}"
            f"{'  fitted' if one.fitted else ''}  {one.what}"
        )
    new = [abs(_error(one)) for one in published_starts() if not one.fitted]
    print(*lines, f"median of {len(new)} that nothing was fitted to: {median(new):.0%}", sep="\n")
    assert outside == []
    assert median(new) < 0.25
