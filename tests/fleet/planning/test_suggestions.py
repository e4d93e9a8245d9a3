"""Models that a fleet can serve: the best checkpoint of each, the largest model first."""

import pytest

from sparkfleet.fleet.nodes.assumed import assume, assumed_inventory
from sparkfleet.fleet.planning import suggestions as module
from sparkfleet.fleet.planning.suggestions import ModelRequirements, suggestions
from sparkfleet.planner.place.fleet_map import Fleet, links_of

MODELS = {
    "qwen3.6-27b": ("Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-27B-FP8", "nvidia/Qwen3.6-27B-NVFP4"),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "deepseek-v3.1": ("deepseek-ai/DeepSeek-V3.1",),
}


@pytest.fixture(autouse=True)
def few_models(monkeypatch):
    monkeypatch.setattr(module, "published_models", lambda: MODELS)


def sparks(number):
    inventory = assumed_inventory(number)
    facts = assume("dgx-spark", inventory)
    return Fleet(name="f", nodes=facts, links=links_of(inventory), assumed=tuple(one.name for one in facts))


def models(found):
    return [one.model for one in found.found]


def test_one_checkpoint_of_each_model_and_the_largest_model_first():
    found = suggestions(sparks(1), ModelRequirements())
    assert models(found) == ["ggml-org/gpt-oss-120b-GGUF:MXFP4", "nvidia/Qwen3.6-27B-NVFP4"]
    assert found.not_served == ("deepseek-ai/DeepSeek-V3.1",)
    large = found.found[0]
    assert (round(large.parameters / 1e9), round(large.active_parameters / 1e9)) == (117, 5)
    assert large.tps == large.rung.prediction.decode_tps_per_request.mid
    assert large.rung.candidate.shape.nodes == ("spark1",)


def test_every_checkpoint():
    found = suggestions(sparks(1), ModelRequirements(), every=True)
    own = [one for one in found.found if "27B" in one.model]
    assert {one.model for one in own} >= set(MODELS["qwen3.6-27b"])
    assert [one.rung.worth for one in own] == sorted((one.rung.worth for one in own), reverse=True)


def test_base_models_are_among_all_of_them_only(monkeypatch):
    monkeypatch.setattr(module, "published_models", lambda: {"qwen2.5-7b": ("Qwen/Qwen2.5-7B",)})
    found = suggestions(sparks(1), ModelRequirements())
    assert (found.found, found.not_served) == ((), ())
    assert models(suggestions(sparks(1), ModelRequirements(), every=True)) == ["Qwen/Qwen2.5-7B"]


def test_what_is_known_to_answer_wrongly_comes_last(monkeypatch):
    """LibertAIDAI's is predicted fastest, and was suggested although its own plan warns of corrupted tokens."""
    ids = tuple(f"{owner}/GLM-5.3-Flash-NVFP4" for owner in ("LibertAIDAI", "RedHatAI", "nvidia"))
    monkeypatch.setattr(module, "published_models", lambda: {"glm-5.3-flash": ids})
    assert models(suggestions(sparks(2), ModelRequirements())) == ["RedHatAI/GLM-5.3-Flash-NVFP4"]
    *sound, wrong = suggestions(sparks(2), ModelRequirements(), every=True).found
    assert (wrong.model, wrong.is_wrong) == (ids[0], True)
    assert wrong.tps > max(one.tps for one in sound)


def test_a_checkpoint_that_others_ran_comes_before_one_that_nobody_did(monkeypatch):
    """The 4-bit GGUF is predicted faster than NVFP4 on SGLang, of which 32 runs are published, at up to 42.5 tok/s."""
    ids = ("Inferact/Qwen3.8-Flash-Next-NVFP4",)
    monkeypatch.setattr(module, "published_models", lambda: {"qwen3.8-flash-next": ids})
    first, *others = suggestions(sparks(1), ModelRequirements(), every=True).found
    assert (first.model, first.rung.published.same) == (ids[0], True)
    assert first.tps < max(one.tps for one in others)
    assert models(suggestions(sparks(1), ModelRequirements())) == [first.model]


def test_of_two_that_are_predicted_alike_the_one_with_a_published_rate_leads(monkeypatch):
    ids = ("r0b0tlab/Qwen3.8-27B-NVFP4-MTP-sm121", "RadixArk/Qwen3.8-27B-NVFP4")
    monkeypatch.setattr(module, "published_models", lambda: {"qwen3.8-27b": ids})
    found = suggestions(sparks(1), ModelRequirements(), every=True).found
    assert [one.model for one in found[:2]] == [ids[1], ids[0]]
    assert found[0].rung.worth < found[1].rung.worth < 1.02 * found[0].rung.worth
    assert (found[0].rung.published.exactly is not None, found[1].rung.published.exactly) == (True, None)


def test_of_two_that_are_alike_and_not_published_the_one_of_a_recipe_leads(monkeypatch):
    """r0b0tlab's is predicted 0.3 % faster on two Sparks, for which NVIDIA's recipe has NVIDIA's."""
    ids = ("r0b0tlab/Qwen3.8-27B-NVFP4-MTP-sm121", "nvidia/Qwen3.8-27B-NVFP4")
    monkeypatch.setattr(module, "published_models", lambda: {"qwen3.8-27b": ids})
    found = suggestions(sparks(2), ModelRequirements(), every=True).found
    assert found[0].model == ids[1]
    assert found[1].rung.worth > found[0].rung.worth
    assert found[0].rung.published.exactly is None


def test_what_was_published_on_fewer_sparks_counts_on_more(monkeypatch):
    """Plans carry it from one number of Sparks to the next; the worth by which checkpoints are compared did not have it, and
    on four one that nobody ran came first."""
    ids = ("RedHatAI/Qwen3.8-27B-INT4", "nvidia/Qwen3.8-27B-NVFP4")
    monkeypatch.setattr(module, "published_models", lambda: {"qwen3.8-27b": ids})
    found = suggestions(sparks(4), ModelRequirements(), every=True).found
    tried = {one.model: one for one in found}
    assert found[0].model == ids[1]
    assert tried[ids[0]].tps > tried[ids[1]].tps


def test_few_bits_are_the_last_resort(monkeypatch):
    """MiniMax-M2.7 in 4.5 bits takes two Sparks; on one, only a GGUF in 3.8 bits fits."""
    ids = ("nvidia/MiniMax-M2.7-NVFP4", "olka-fi/MiniMax-M2.7-MXFP4")
    monkeypatch.setattr(module, "published_models", lambda: {"minimax-m2.7": ids})
    assert models(suggestions(sparks(1), ModelRequirements())) == ["unsloth/MiniMax-M2.7-GGUF:UD-IQ4_XS"]
    assert set(models(suggestions(sparks(2), ModelRequirements(), every=True))) == set(ids)


def test_the_kind_of_text_counts():
    found = {
        kind: suggestions(sparks(1), ModelRequirements(content=kind)).found[-1] for kind in ("prose", "code")
    }
    assert found["prose"].model == found["code"].model
    assert found["prose"].tps < found["code"].tps  # code takes more drafts


def test_requirements_hold_for_each():
    assert models(suggestions(sparks(1), ModelRequirements(needs=("vision",)))) == [
        "nvidia/Qwen3.6-27B-NVFP4"
    ]
    found = suggestions(sparks(1), ModelRequirements(objective="throughput", context=16384, concurrency=32))
    for one in found.found:
        candidate = one.rung.candidate
        assert (candidate.context, candidate.concurrency) == (16384, 32)
        assert one.tps == one.rung.prediction.decode_tps_aggregate.mid


def test_progress_is_reported_for_each_model():
    seen = []
    suggestions(sparks(1), ModelRequirements(), on_model=lambda done, all_: seen.append((done, all_)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
