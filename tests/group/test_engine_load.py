import pytest

from sparkfleet.engines.base import PositionCounter
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.group.engine_load import read_load
from sparkfleet.group.probe import sum_series, sums_by_position

VLLM = """
vllm:num_requests_running{{engine="0"}} 1.0
vllm:num_requests_waiting{{engine="0"}} 2.0
vllm:generation_tokens_total{{engine="0"}} 40.0
vllm:prompt_tokens_total{{engine="0"}} 512.0
vllm:kv_cache_usage_perc{{engine="0"}} {moving}
"""
SGLANG = """
sglang:num_running_reqs{{}} 1.0
sglang:num_queue_reqs{{}} 2.0
sglang:realtime_tokens_total{{mode="prefill_compute"}} {moving}
sglang:realtime_tokens_total{{mode="decode"}} 40.0
"""
TRTLLM = """
trtllm_num_requests_running{{}} 1.0
trtllm_num_requests_waiting{{}} 2.0
trtllm_generation_tokens_total{{}} {moving}
"""


class Page:
    def __init__(self, text):
        self.text = text

    async def page(self, path):
        return self.text


@pytest.mark.parametrize(("name", "page"), [("vllm", VLLM), ("sglang", SGLANG), ("trtllm", TRTLLM)])
async def test_what_moves_when_an_engine_works_is_among_its_figures(name, page):
    """Of a prefill of vLLM that is the cache, of SGLang what it computes, and of TensorRT-LLM nothing before the end."""
    engine = engine_by_name(name)
    before, after = [await read_load(Page(page.format(moving=moving)), engine, 0) for moving in (0.25, 0.5)]
    assert (before.running, before.waiting) == (1, 2)
    assert before.figures != after.figures
    assert before.figures == (await read_load(Page(page.format(moving=0.25)), engine, 0)).figures


async def test_requests_that_come_and_go_are_no_movement():
    engine = engine_by_name("vllm")
    page = VLLM.format(moving=0.25)
    one, other = [await read_load(Page(text), engine, 0) for text in (page, page.replace(" 2.0", " 3.0"))]
    assert (one.waiting, other.waiting) == (2, 3)
    assert one.figures == other.figures


async def test_of_a_page_that_does_not_answer_no_figure_is_known():
    assert (await read_load(Page(""), engine_by_name("vllm"), 0)).figures is None
    assert (await read_load(Page(VLLM), engine_by_name("custom"), 0)).figures is None


def test_a_series_that_is_no_number_counts_nothing():
    """vLLM prints NaN for a ratio of nothing: one of them made the whole reading one that no integer is made of."""
    page = 'a{model="m"} NaN\na{model="n"} 2.0\nb +Inf\n'
    assert sum_series(page, ("a", "b", "c")) == {"a": 2.0, "b": 0.0, "c": 0.0}


def test_a_page_that_was_cut_is_no_error():
    """It ended the process of the group: the error passed out of its watch, and the next actor adopted the engine."""
    page = 'a{x="1"} 2\nb{model_na'
    assert sum_series(page, ("a", "b")) == {"a": 2.0, "b": 0.0}


VLLM_DRAFTS = """
vllm:num_requests_running{engine="0"} 1.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 120.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 35.0
"""
LLAMACPP_DRAFTS = """
llamacpp:spec_decode_num_drafts_total 40
llamacpp:spec_decode_num_draft_tokens_total 120
llamacpp:spec_decode_num_accepted_tokens_total 60
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 36
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 16
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 8
"""
SGLANG_DRAFTS = """
sglang:spec_verify_calls_total{model_name="m"} 200
sglang:generation_tokens_total{model_name="m"} 510
sglang:num_requests_total{model_name="m"} 10
"""
TRTLLM_DRAFTS = """
trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 30
trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 10
"""


@pytest.mark.parametrize(
    ("name", "page", "counts"),
    [
        ("vllm", VLLM_DRAFTS, (300.0, 120.0, 100.0, (70.0, 35.0, 15.0))),
        ("llama.cpp", LLAMACPP_DRAFTS, (120.0, 60.0, 40.0, (36.0, 16.0, 8.0))),
        ("sglang", SGLANG_DRAFTS, (600.0, 300.0, 200.0, ())),
        ("trtllm", TRTLLM_DRAFTS, (30.0, 10.0, 0.0, ())),
    ],
)
async def test_draft_tokens_are_read_with_their_steps_and_positions(name, page, counts):
    """Of SGLang the accepted ones follow from its tokens; TensorRT-LLM counts no steps."""
    load = await read_load(Page(page), engine_by_name(name), 3)
    assert (load.drafted, load.accepted, load.draft_steps, load.accepted_by_position) == counts
    without = await read_load(Page(page), engine_by_name(name), 0)
    assert (without.drafted, without.draft_steps, without.accepted_by_position) == (0.0, 0.0, ())


def test_positions_with_a_gap_are_not_known():
    series = PositionCounter("a", "at")
    assert sums_by_position('a{at="0"} 3\na{at="2"} 1\n', series) == ()
    assert sums_by_position('a{at="0",x="1"} 3\na{at="0",x="2"} 2\nb{at="1"} 9\n', series) == (5.0,)
