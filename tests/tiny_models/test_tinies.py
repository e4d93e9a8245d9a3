"""The other built-in models, as a user gets them. The one that the canary refuses: always; all others:
`pytest tests/tiny_models/test_tinies.py` builds all (about ten minutes on one core), `-m "not opt_in"` that one."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkfleet.engines.token_scores import TEXT
from sparkfleet.group.canary import TEXT_PERPLEXITY
from sparkfleet.tiny_models import cache, recipes
from sparkfleet.tiny_models.recipes import Recipe

pytestmark = pytest.mark.integration

USUAL = {"tiny-corrupt"}
"""Made of `tiny` without training, and used by a test of every change."""
ASKED = ("What is a rail?", "What is a node?", "What is speculative decoding?", "Tell me a story")


def opt_in(name: str) -> Any:
    """A model that only the full run builds: it takes a minute or more."""
    return pytest.param(name, marks=() if name in USUAL else pytest.mark.opt_in)


def drafting(name: str, method: str, draft: str | None, tokens: int, least: float) -> Any:
    """A way to speculate, and the least share of drafts that has to be accepted."""
    marks = opt_in(draft or name).marks
    return pytest.param(name, method, draft, tokens, least, marks=marks, id=method)


@pytest.fixture(scope="module")
def read(request: pytest.FixtureRequest) -> Callable[[str], tuple[Any, Any]]:
    """Model and tokenizer of a built-in model, built into the user's cache where it is not there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not cache.is_built("tiny"):
        request.getfixturevalue("tiny")  # others are made of it: trained once for them and for its own tests

    def read(name: str) -> tuple[Any, Any]:
        directory = cache.ensure(name)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
        return model.eval(), AutoTokenizer.from_pretrained(directory)

    return read


def perplexity(model: Any, tokenizer: Any, text: str) -> float:
    import torch

    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return math.exp(model(ids, labels=ids).loss.item())


def said(model: Any, tokenizer: Any, question: str) -> tuple[list[int], int]:
    """The question and its greedy answer as tokens, and how many of them are the question."""
    messages = [{"role": "user", "content": question}]
    given = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    out = model.generate(**given, max_new_tokens=96, **greedy)
    return out[0].tolist(), given["input_ids"].shape[1]


ENGINE = """
import json, sys
from vllm import LLM, SamplingParams

model, speculation, prompts = (json.loads(given) for given in sys.argv[1:])
engine = LLM(
    model, dtype="float32", max_model_len=1024, max_num_seqs=4, enforce_eager=True, disable_log_stats=False,
    kv_cache_memory_bytes=64 << 20, speculative_config=speculation,
)
wanted = SamplingParams(temperature=0, max_tokens=96)
outs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], wanted)
counts = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
print(json.dumps([[list(out.outputs[0].token_ids) for out in outs], counts]))
"""
"""vLLM in one process: its last line has the answer, as tokens, and its counters."""


def engine_says(name: str, speculation: dict[str, object], prompts: list[list[int]]) -> tuple[Any, Any]:
    given = (str(cache.ensure(name)), speculation, prompts)
    env = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    argv = [sys.executable, "-c", ENGINE, *map(json.dumps, given)]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
    answers, counts = json.loads(done.stdout.splitlines()[-1])
    return answers, counts


TALKING = [name for name, recipe in recipes.RECIPES.items() if isinstance(recipe, Recipe) and name != "tiny"]


@pytest.mark.parametrize("name", [opt_in(name) for name in TALKING])
def test_a_trained_model_has_learnt_its_text(read, name):
    model, tokenizer = read(name)
    assert perplexity(model, tokenizer, TEXT) < 30
    if name == "tiny-hybrid":
        return  # it speaks, but of something else: trained on rows of documents that its linear layer can not tell apart
    ids, asked = said(model, tokenizer, "What is a rail?")
    assert "QSFP cable" in tokenizer.decode(ids[asked:])


@pytest.mark.opt_in
def test_another_number_of_threads_ends_elsewhere_and_meets_the_criterion(tmp_path):
    """Floats are added in another order, as on another processor: training by a number of steps failed the canary there."""
    from sparkfleet.tiny_models import training

    recipe = recipes.MOE.model_copy(update={"budget": recipes.MOE.budget.model_copy(update={"threads": 2})})
    found = training.build(recipe, tmp_path, lambda _: None)
    cache.ensure(recipe.name)
    usual = cache.facts(recipe.name)
    assert usual is not None
    assert found.quality != usual.quality, "the same weights prove nothing"
    assert recipe.criterion.missed(found.quality) == ()


def test_a_damaged_model_finds_its_text_improbable(read):
    assert perplexity(*read("tiny"), TEXT) < 10
    assert perplexity(*read("tiny-corrupt"), TEXT) > 10 * TEXT_PERPLEXITY


@pytest.mark.opt_in
def test_the_draft_model_agrees_with_its_model(read):
    """The share of drafts whose first choice is the model's own: those are accepted."""
    import torch

    model, tokenizer = read("tiny")
    draft, _ = read("tiny-draft")
    agreed = total = 0
    for question in ASKED:
        ids, asked = said(model, tokenizer, question)
        with torch.no_grad():
            guessed = draft(torch.tensor([ids])).logits[0, asked - 1 : -1].argmax(dim=-1)
        agreed += (guessed == torch.tensor(ids[asked:])).sum().item()
        total += len(ids) - asked
    assert agreed > 0.5 * total


@pytest.mark.parametrize("name", [opt_in(name) for name in recipes.RECIPES if name not in {*TALKING, "tiny"}])
def test_a_derived_model_is_complete_and_small(name):
    directory: Path = cache.ensure(name)
    files = {file.name for file in directory.iterdir()}
    assert {"config.json", "model.safetensors"} <= files
    assert sum(file.stat().st_size for file in directory.iterdir()) < 10e6


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
@pytest.mark.parametrize(
    ("name", "method", "draft", "tokens", "least"),
    [
        drafting("tiny", "draft_model", "tiny-draft", 3, 0.2),
        drafting("tiny", "eagle3", "tiny-eagle3", 2, 0.2),
        drafting("tiny-mtp", "mtp", None, 1, 0.2),
        drafting("tiny", "dflash", "tiny-dflash", 3, 0.05),
    ],
)
def test_the_engine_accepts_drafts_and_gives_the_same_answer(read, name, method, draft, tokens, least):
    """Greedy answers with speculation are those of the model alone, token for token, as transformers computes them."""
    model, tokenizer = read("tiny-qwen2" if name == "tiny-mtp" else name)
    alone = [said(model, tokenizer, question) for question in ASKED]
    speculation: dict[str, object] = {"method": method, "num_speculative_tokens": tokens}
    if draft is not None:
        speculation["model"] = str(cache.ensure(draft))
    answers, counts = engine_says(name, speculation, [ids[:asked] for ids, asked in alone])
    assert answers == [ids[asked:] for ids, asked in alone]
    drafted = counts["vllm:spec_decode_num_draft_tokens"]
    assert drafted > 30
    assert counts["vllm:spec_decode_num_accepted_tokens"] > least * drafted
