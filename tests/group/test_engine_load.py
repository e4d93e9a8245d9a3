import pytest

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.group.engine_load import read_load
from sparkfleet.group.probe import sum_series

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

    async def gauges(self, path, names):
        return sum_series(self.text, names) if self.text else {}


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
