"""Requests by which an engine reports the tokens that it sampled and their probabilities, and the readers of its answers.

A text encodes to other tokens than those that were sampled: a model may reach "cable" by "c" and "able", and its end token
leaves no text at all. A model's output is therefore read by token ids. Pure: bodies out, answers in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sparkfleet.engines.token_scores import Score

COMPLETIONS = "/v1/completions"
GENERATE = "/generate"
NATIVE_COMPLETION = "/completion"
TOKENIZE = "/tokenize"
LIKELIEST = 200
"""Tokens whose probabilities llama.cpp returns at each place. A token beyond them is at most as likely as the last of them,
and is scored as that: too high, but in a broken model low enough for the canary."""


class Scored(NamedTuple):
    """Tokens of a prompt and their scores. Both are empty if the engine does not report them."""

    ids: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    """One less than the ids: the first token follows nothing."""


class Sampled(NamedTuple):
    """A greedy continuation."""

    text: str = ""
    tokens: int = 0
    """Tokens generated, the end token included."""
    ids: tuple[int, ...] = ()
    """Ids of those tokens, as they were sampled; () if the engine does not report them."""


class Ask(NamedTuple):
    """A POST request to an engine."""

    path: str
    body: dict[str, Any]


class TokenApi(Protocol):
    """An engine's own way to token ids and probabilities."""

    def encode(self, text: str) -> Ask | None:
        """A request for the token ids of a text; None if `score` takes texts."""
        ...

    def encoded(self, answer: Any) -> tuple[int, ...]:
        """The ids in the answer to `encode`."""
        ...

    def sample(self, model: str, prompt: str, tokens: int) -> Ask:
        """A request for up to `tokens` tokens at temperature 0."""
        ...

    def sampled(self, answer: Mapping[str, Any]) -> Sampled:
        """The tokens in the answer to `sample`."""
        ...

    def score(self, model: str, prompt: str | Sequence[int]) -> Ask | None:
        """A request for the probabilities of a prompt's own tokens; None if the engine has none."""
        ...

    def scored(self, answer: Any, prompt: str | Sequence[int]) -> Scored:
        """The probabilities in the answer to `score` of this prompt."""
        ...


class _TextPrompts:
    """Base of the engines that score texts as they are."""

    def encode(self, text: str) -> Ask | None:
        """None."""
        return None

    def encoded(self, answer: Any) -> tuple[int, ...]:
        """Empty."""
        return ()


class TextCompletions(_TextPrompts):
    """OpenAI's completions without ids: TensorRT-LLM's.

    Its server takes token ids as a prompt and returns sampled ones with `detokenize: false`, but has no `prompt_logprobs`
    and ignores `echo` (serve/openai_protocol.py, 1.3): a prompt cannot be scored, so that ids would be of no use.
    """

    def sample(self, model: str, prompt: str, tokens: int) -> Ask:
        """Fields of the OpenAI API only: this server refuses unknown ones."""
        return Ask(COMPLETIONS, _greedy(model, prompt, tokens))

    def sampled(self, answer: Mapping[str, Any]) -> Sampled:
        """The text and its number of tokens."""
        try:
            return Sampled(str(answer["choices"][0]["text"]), int(answer["usage"]["completion_tokens"]))
        except (KeyError, IndexError, TypeError, ValueError):
            return Sampled()

    def score(self, model: str, prompt: str | Sequence[int]) -> Ask | None:
        """None: this server cannot score a prompt."""
        return None

    def scored(self, answer: Any, prompt: str | Sequence[int]) -> Scored:
        """Empty: this server cannot score a prompt."""
        return Scored()


class IdCompletions(TextCompletions):
    """vLLM's completions: `return_token_ids` (since 0.10.2, pull request 22587) and `prompt_logprobs`.

    Unknown fields are ignored by vLLM: a build without `return_token_ids` answers, and without ids.
    """

    def sample(self, model: str, prompt: str, tokens: int) -> Ask:
        """Requests the ids of the sampled tokens; no probabilities, so that sampling works as for a client."""
        return Ask(COMPLETIONS, {**_greedy(model, prompt, tokens), "return_token_ids": True})

    def sampled(self, answer: Mapping[str, Any]) -> Sampled:
        """`choices[0].token_ids`, the end token included."""
        found = super().sampled(answer)
        return found._replace(ids=_ids(answer["choices"][0].get("token_ids"))) if found.tokens else found

    def score(self, model: str, prompt: str | Sequence[int]) -> Ask | None:
        """Requests `prompt_logprobs`, keyed by token id: `echo` keys by text, which two tokens may share."""
        wanted = {"prompt_logprobs": 1, "return_token_ids": True}
        given = prompt if isinstance(prompt, str) else list(prompt)
        return Ask(COMPLETIONS, _greedy(model, given, 1) | wanted)

    def scored(self, answer: Any, prompt: str | Sequence[int]) -> Scored:
        """`choices[0].prompt_logprobs`: null, then {id: {logprob}} of the token itself and of the likeliest."""
        try:
            choice = answer["choices"][0]
            ids = _ids(choice["prompt_token_ids"])
            places = zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
            return Scored(ids, tuple(_by_id(token, place) for token, place in places))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return Scored()


class NativeGenerate(_TextPrompts):
    """SGLang's own `/generate`: its completions report ids only since pull request 30917 (July 2026, after 0.5.12)."""

    def sample(self, model: str, prompt: str, tokens: int) -> Ask:
        """`output_ids` come with every answer."""
        return Ask(GENERATE, {"text": prompt, "sampling_params": _sampling(tokens)})

    def sampled(self, answer: Mapping[str, Any]) -> Sampled:
        """`output_ids`, the end token included."""
        try:
            count = int(answer["meta_info"]["completion_tokens"])
            return Sampled(str(answer["text"]), count, _ids(answer.get("output_ids")))
        except (KeyError, TypeError, ValueError):
            return Sampled()

    def score(self, model: str, prompt: str | Sequence[int]) -> Ask | None:
        """Scores the whole prompt (`logprob_start_len` 0), which keeps it out of the prefix cache."""
        given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        return Ask(GENERATE, {**given, "sampling_params": _sampling(1), **wanted})

    def scored(self, answer: Any, prompt: str | Sequence[int]) -> Scored:
        """`input_token_logprobs`: [logprob, id, text] of each token, the first one's null; the likeliest beside them."""
        try:
            meta = answer["meta_info"]
            own, best = meta["input_token_logprobs"], meta["input_top_logprobs"]
            places = zip(own[1:], best[1:], strict=True)
            scores = tuple(
                Score(float(token[0]), max(float(top[0]) for top in tops)) for token, tops in places
            )
            return Scored(tuple(int(token[1]) for token in own), scores)
        except (KeyError, IndexError, TypeError, ValueError):
            return Scored()


class PrefixCompletions:
    """llama.cpp's own `/completion`: it has no probabilities of a prompt, but of each generated token the likeliest ones.

    A prompt is scored by generating one token after each of its beginnings, all in one request (a list of prompts); the
    probabilities are the model's, before any sampler. The work is the sum of the lengths: about 1,700 tokens for the
    canary's longest.
    """

    def encode(self, text: str) -> Ask | None:
        """Ids with the special tokens that the model's prompts begin with."""
        return Ask(TOKENIZE, {"content": text, "add_special": True})

    def encoded(self, answer: Any) -> tuple[int, ...]:
        """`tokens`."""
        return _ids(answer.get("tokens")) if isinstance(answer, Mapping) else ()

    def sample(self, model: str, prompt: str, tokens: int) -> Ask:
        """Requests the ids of the sampled tokens."""
        wanted = {"n_predict": tokens, "temperature": 0, "return_tokens": True}
        return Ask(NATIVE_COMPLETION, {"model": model, "prompt": prompt, **wanted})

    def sampled(self, answer: Mapping[str, Any]) -> Sampled:
        """`content`, `tokens_predicted` and `tokens`."""
        try:
            return Sampled(str(answer["content"]), int(answer["tokens_predicted"]), _ids(answer["tokens"]))
        except (KeyError, TypeError, ValueError):
            return Sampled()

    def score(self, model: str, prompt: str | Sequence[int]) -> Ask | None:
        """Requests one token after each beginning of these ids, the whole of them too: its answer has no further use."""
        if isinstance(prompt, str):
            return None
        beginnings = [list(prompt[: at + 1]) for at in range(len(prompt))]
        wanted = {"n_predict": 1, "temperature": 0, "n_probs": LIKELIEST}
        return Ask(NATIVE_COMPLETION, {"model": model, "prompt": beginnings, **wanted})

    def scored(self, answer: Any, prompt: str | Sequence[int]) -> Scored:
        """The answers in the order of `index`, each with the likeliest tokens at its place."""
        try:
            places = sorted(answer, key=lambda one: int(one["index"]))[:-1]
            ids = _ids(prompt)
            pairs = zip(ids[1:], map(_likeliest, places), strict=True)
            return Scored(ids, tuple(_among(token, likeliest) for token, likeliest in pairs))
        except (KeyError, IndexError, TypeError, ValueError):
            return Scored()


def _likeliest(place: Mapping[str, Any]) -> dict[int, float]:
    found = place["completion_probabilities"][0]["top_logprobs"]
    return {int(one["id"]): float(one["logprob"]) for one in found}


def _among(token: int, likeliest: Mapping[int, float]) -> Score:
    return Score(likeliest.get(token, min(likeliest.values())), max(likeliest.values()))


def _greedy(model: str, prompt: str | list[int], tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}


def _sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens}


def _ids(given: Any) -> tuple[int, ...]:
    return tuple(int(token) for token in given or ())


def _by_id(token: int, place: Mapping[str, Mapping[str, Any]]) -> Score:
    own = float(place[str(token)]["logprob"])
    return Score(own, max(float(one["logprob"]) for one in place.values()))
