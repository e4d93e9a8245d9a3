import pytest

from sparkfleet.knowledge.published.factors import factors
from sparkfleet.planner.report.effect_words import effect_words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("engine=vllm", "vLLM, all models"),
        ("family=moe-sliding-2880x36x128", "this family: moe-sliding-2880x36x128"),
        ("family+format+engine=moe-sliding-4096x48x256+fp8+mxfp4+vllm", "this family in FP8+MXFP4 on vLLM"),
        ("release+family=vllm+0.31+dense-1024x28+fp8+mxfp4", "this family in FP8+MXFP4 on vLLM 0.31"),
        ("release=sglang+0.5.23", "SGLang 0.5.23, all models"),
        ("engine+kind=vllm+moe-sliding", "models of its kind (moe-sliding) on vLLM"),
        ("engine+kind=vllm+moe-sliding+mxfp4", "models of its kind (moe-sliding) in MXFP4 on vLLM"),
        ("crowd=1+vllm", "1 request at once on vLLM"),
        ("crowd=5", "5 prompts at once"),
        ("crowd+engine=5+vllm", "5 prompts at once on vLLM"),
        ("spec+method+crowd=mtp+16", "mtp, 16 requests at once"),
        ("unheard=of", "unheard=of"),
    ],
)
def test_a_key_in_words(key, words):
    assert effect_words(key) == words


@pytest.mark.parametrize("quantity", ["decode", "prefill"])
def test_every_kind_of_effect_has_words(quantity):
    assert [key for key in factors().effects[quantity] if effect_words(key) == key] == []
