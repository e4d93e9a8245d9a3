"""Readers of the answers of llama.cpp, whose probabilities of a prompt come from many generations."""

import math

import pytest

from sparkfleet.engines.token_api import LIKELIEST, PrefixCompletions, Sampled, Scored
from sparkfleet.engines.token_scores import Score

API = PrefixCompletions()


def place(index, *likeliest):
    """The answer for one beginning: ids and their log-probabilities."""
    tops = [{"id": token, "token": "?", "bytes": [63], "logprob": logprob} for token, logprob in likeliest]
    return {"index": index, "content": "?", "completion_probabilities": [{**tops[0], "top_logprobs": tops}]}


def test_a_text_is_encoded_with_the_tokens_that_prompts_begin_with():
    ask = API.encode("A rail")
    assert (ask.path, ask.body) == ("/tokenize", {"content": "A rail", "add_special": True})
    assert API.encoded({"tokens": [2, 35, 573]}) == (2, 35, 573)
    assert API.encoded({}) == API.encoded([]) == ()
    assert API.score("m", "A rail") is None, "only its ids can be scored"


def test_each_beginning_of_a_prompt_is_one_of_a_list_of_prompts():
    ask = API.score("m", (35, 573, 7))
    assert ask.path == "/completion"
    assert ask.body["prompt"] == [[35], [35, 573], [35, 573, 7]]
    assert (ask.body["n_predict"], ask.body["n_probs"]) == (1, LIKELIEST)


def test_scores_are_of_the_token_that_follows_each_beginning():
    answer = [place(1, (9, -0.5), (7, -1.5)), place(0, (573, -0.1), (8, -3.0)), place(2, (1, -0.2))]
    assert API.scored(answer, (35, 573, 7)) == Scored((35, 573, 7), (Score(-0.1, -0.1), Score(-1.5, -0.5)))


def test_a_token_beyond_the_likeliest_is_scored_as_the_last_of_them():
    found = API.scored([place(0, (1, -0.1), (2, -6.0)), place(1, (1, -0.1))], (35, 573))
    assert found.scores == (Score(-6.0, -0.1),)


@pytest.mark.parametrize(
    "answer",
    [{}, [], [{"index": 0}], [place(0, (1, -0.1))], {"error": {"code": 400}}, [{"index": "a"}], None],
)
def test_an_answer_without_probabilities_has_no_scores(answer):
    assert API.scored(answer, (35, 573, 7)) == Scored()


def test_sampled_ids_are_those_of_the_answer():
    ask = API.sample("m", "A rail", 8)
    assert ask.body == {
        "model": "m", "prompt": "A rail", "n_predict": 8, "temperature": 0, "return_tokens": True
    }  # fmt: skip
    answer = {"content": " is", "tokens_predicted": 2, "tokens": [417, 2]}
    assert API.sampled(answer) == Sampled(" is", 2, (417, 2))
    assert API.sampled({"error": {}}) == Sampled()


def test_an_impossible_token_is_a_number():
    """llama.cpp writes the lowest float instead of minus infinity, which JSON does not have."""
    found = API.scored([place(0, (1, -3.4028234663852886e38)), place(1, (1, 0.0))], (35, 1))
    assert math.isfinite(found.scores[0].own)
