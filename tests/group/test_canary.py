import math

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sparkfleet.engines.base import DraftTokenCounts
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.token_scores import OWN_TOKENS, TEXT, Score, agreement, perplexity
from sparkfleet.group.canary import Sanity, only_text, sanity
from sparkfleet.group.probe import Probe
from sparkfleet.perf.prediction import Speculation


def scores(*own, best=None):
    return tuple(Score(own=one, best=one if best is None else best) for one in own)


def test_perplexity_is_that_of_the_tokens():
    assert perplexity(scores(*[math.log(0.25)] * 10)) == pytest.approx(4.0)
    assert perplexity(scores(-1e9, *[-1.0] * 10)) > 1e300, "large, and still a number"


def test_a_few_tokens_tell_nothing():
    assert perplexity(scores(-20.0, -20.0)) is None
    assert agreement(scores(-20.0, -20.0)) is None


def test_agreement_counts_the_tokens_that_the_model_would_choose_again():
    said = (*scores(*[-0.1] * 6), *scores(*[-3.0] * 4, best=-0.05))
    assert agreement(said) == 0.6


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Sanity(text_perplexity=50_000.0), "the perplexity of plain English is"),
        (Sanity(text_perplexity=8.0, own_perplexity=300.0), "perplexity of its own answer is 300.0"),
        (Sanity(text_perplexity=8.0, own_perplexity=9.0, own_agreement=0.3), "30% of its own tokens"),
        (
            Sanity(text_perplexity=8.0, method="mtp", accepted_share=0.05),
            "5.0% of the draft tokens (at least 10%)",
        ),
        (Sanity(text_perplexity=8.0, method="dflash", accepted_share=0.03), "at least 4%"),
        (Sanity(text_perplexity=math.inf), "the perplexity of plain English is"),
        (Sanity(only="!"), 'repeats "!" only, which indicates NaN logits'),
    ],
)
def test_what_is_wrong_is_said(found, words):
    assert words in found.complaint()


def test_what_is_sane_or_not_known_is_no_complaint():
    sane = Sanity(text_perplexity=12.0, own_perplexity=1.4, own_agreement=0.98, accepted_share=0.6)
    assert sane.complaint() == ""
    assert Sanity().complaint() == ""
    assert Sanity(method="ngram", accepted_share=0.0).complaint() == "", "a new text repeats nothing"
    assert Sanity(method="dflash", accepted_share=0.05).complaint() == ""
    assert Sanity().values() == {}
    assert sane.values()["own_agreement"] == 0.98


def test_what_was_not_checked_is_said():
    assert Sanity(text_perplexity=8.0, own_perplexity=1.5).unchecked() == ()
    assert Sanity(text_perplexity=8.0, method="eagle3").unchecked() == (
        "its own answer's perplexity",
        "acceptance",
    )
    assert "acceptance" not in Sanity(method="ngram").unchecked()


def test_numbers_that_are_none_are_noise():
    assert Sanity(text_perplexity=perplexity(scores(*[math.nan] * 10))).complaint()


def test_what_an_answer_repeats_and_nothing_else():
    assert only_text("!!! !!\n!", 3) == "!"
    assert only_text(" the" * 48, 48) == only_text("the" + " the" * 46, 48) == "the"
    assert only_text("\n" * 48, 48) == "\n"
    assert only_text("!!?", 3) == only_text(" ", 8) == only_text("", 8) == ""
    assert only_text("the rail and " * 12, 36) == "", "a loop of several tokens, as small sound models have"
    assert only_text(" the" * 20 + " rail", 21) == only_text("a cable", 2) == ""


@pytest.mark.parametrize(
    ("model", "perplexity", "refused"),
    [
        ("openai/gpt-oss-120b", 3_381.0, False),
        ("ggml-org/gpt-oss-20b-GGUF:MXFP4", 3_381.0, False),
        ("openai/gpt-oss-120b", 150_000.0, True),
        ("Qwen/Qwen3-8B", 3_381.0, True),
    ],
)
def test_gpt_oss_finds_plain_text_improbable(model, perplexity, refused):
    """A sound gpt-oss-20b has 196 on WikiText-2, and up to 3,381 for single passages: above the limit of others."""
    assert bool(Sanity(model=model, text_perplexity=perplexity).complaint()) is refused


SAMPLED = tuple(range(500, 500 + OWN_TOKENS))
"""Ids that the model of `Server` samples. A text never encodes to them: its tokens are its characters."""
LIKELY, UNLIKELY = -0.1, -8.0


def encode(prompt):
    return [ord(character) for character in prompt] if isinstance(prompt, str) else list(prompt)


class Server:
    """An engine with vLLM's, SGLang's, TensorRT-LLM's or llama.cpp's API.

    Its model finds the known text likely and the ids that it has sampled, but the text of its answer unlikely: those are
    not the tokens that the text encodes to.
    """

    def __init__(self, text="it is", page="", own=LIKELY, text_own=LIKELY, gives_ids=True, logprobs=None):
        self.text, self.page, self.own, self.text_own = text, page, own, text_own
        self.gives_ids, self.logprobs = gives_ids, logprobs
        self.before = DraftTokenCounts()

    def value(self, ids, place):
        if ids[place] >= 500:
            return self.own
        return self.text_own if ids == encode(TEXT) else UNLIKELY

    async def completions(self, request):
        body = await request.json()
        if self.strict and body.keys() & {"return_token_ids", "prompt_logprobs"}:
            return web.json_response({"error": "extra fields"}, status=400)
        choice = {"text": self.text, "logprobs": self.logprobs if body.get("logprobs") else None}
        ids = encode(body["prompt"])
        if body.get("return_token_ids") and self.gives_ids:
            choice |= {"token_ids": SAMPLED[: body["max_tokens"]], "prompt_token_ids": ids}
        if body.get("prompt_logprobs"):
            choice["prompt_logprobs"] = [None, *(self.place(ids, place) for place in range(1, len(ids)))]
        if body.get("echo"):
            values = [None, *(self.value(ids, place) for place in range(1, len(ids))), LIKELY]
            choice["logprobs"] = {"token_logprobs": values, "top_logprobs": [{"a": LIKELY}] * len(values)}
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": body["max_tokens"]}})

    def place(self, ids, place):
        own = {str(ids[place]): {"logprob": self.value(ids, place), "rank": 1, "decoded_token": "a"}}
        return {"499": {"logprob": LIKELY, "rank": 1, "decoded_token": "a"}} | own

    async def generate(self, request):
        body = await request.json()
        ids = body.get("input_ids") or encode(body["text"])
        tokens = body["sampling_params"]["max_new_tokens"]
        meta = {"prompt_tokens": len(ids), "completion_tokens": tokens}
        if body.get("return_logprob"):
            places = range(1, len(ids))
            meta["input_token_logprobs"] = [
                [None, ids[0], None],
                *([self.value(ids, place), ids[place], None] for place in places),
            ]
            meta["input_top_logprobs"] = [None, *([[LIKELY, 499, None]] for _ in places)]
        answer = {"text": self.text, "meta_info": meta}
        return web.json_response(answer | ({"output_ids": SAMPLED[:tokens]} if self.gives_ids else {}))

    async def tokenize(self, request):
        return web.json_response({"tokens": encode((await request.json())["content"])})

    async def completion(self, request):
        """One answer, or one for each of a list of prompts: the likeliest tokens behind each beginning."""
        body = await request.json()
        if isinstance(body["prompt"], str):
            ids = SAMPLED[: body["n_predict"]] if self.gives_ids else ()
            answer = {"index": 0, "content": self.text, "tokens": ids, "tokens_predicted": body["n_predict"]}
            return web.json_response(answer)
        whole = body["prompt"][-1]
        answers = []
        for index in range(len(whole)):
            after = {499: LIKELY}
            if index + 1 < len(whole):
                after[whole[index + 1]] = self.value(whole, index + 1)
            tops = [
                {"id": token, "token": "a", "bytes": [97], "logprob": one} for token, one in after.items()
            ]
            place = {**tops[0], "top_logprobs": tops}
            answers.append({"index": index, "content": "a", "completion_probabilities": [place]})
        return web.json_response(answers)

    async def metrics(self, _):
        return web.Response(text=self.page)

    async def check(self, engine="vllm", speculation=None):
        self.strict = engine == "trtllm"
        engine, speculation = engine_by_name(engine), speculation or Speculation()
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/completion", self.completion)
        app.router.add_get(engine.metrics_path, self.metrics)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            probe = Probe(session, str(server.make_url("")).rstrip("/"), "m", "t")
            return await sanity(probe, engine, speculation, self.before)


def told(tokens, own=LIKELY):
    """Log-probabilities of so many tokens, as in an answer."""
    return {"token_logprobs": [own] * tokens, "top_logprobs": [{"a": LIKELY}] * tokens}


SCORING = ("vllm", "sglang", "llama.cpp")
"""Engines that give ids of tokens, and probabilities of a prompt's."""
AS_GENERATED = "its own tokens as a prompt (this engine gives no token ids)"


@pytest.mark.parametrize("engine", SCORING)
async def test_an_answer_is_read_by_its_tokens_and_not_by_its_text(engine):
    """The text of the answer encodes to other tokens, which this model finds improbable."""
    found = await Server().check(engine)
    assert found.complaint() == ""
    assert found.unchecked() == ()
    assert found.text_perplexity == pytest.approx(math.exp(-LIKELY))
    assert found.own_perplexity == pytest.approx(math.exp(-LIKELY))
    assert found.own_agreement == 1.0


@pytest.mark.parametrize("engine", SCORING)
async def test_tokens_that_the_model_did_not_choose(engine):
    found = await Server(own=UNLIKELY).check(engine)
    assert found.text_perplexity == pytest.approx(math.exp(-LIKELY))
    assert found.own_perplexity == pytest.approx(math.exp(-UNLIKELY)), "of the sampled tokens alone"
    assert "perplexity of its own answer" in found.complaint()
    assert found.own_agreement == 0.0


@pytest.mark.parametrize("engine", SCORING)
async def test_a_text_that_is_noise_to_the_model(engine):
    assert "the perplexity of plain English is" in (await Server(text_own=UNLIKELY).check(engine)).complaint()


@pytest.mark.parametrize("engine", SCORING)
async def test_without_token_ids_nothing_is_concluded_of_the_text(engine):
    """An answer without ids, and without probabilities as it was generated."""
    found = await Server(gives_ids=False).check(engine)
    assert found.complaint() == ""
    assert "its own answer's perplexity" in found.unchecked()


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
async def test_without_token_ids_the_probabilities_are_those_of_the_generation(engine):
    noise = told(OWN_TOKENS, own=-9.0)
    found = await Server(gives_ids=False, logprobs=noise).check(engine)
    assert "perplexity of its own answer" in found.complaint()
    assert AS_GENERATED in found.unchecked()
    assert "its own answer's perplexity" not in found.unchecked()


async def test_an_engine_that_reports_nothing_is_not_taken_for_checked():
    found = await Server("garbage").check("trtllm")
    assert found.complaint() == ""
    assert found.unchecked() == ("a known text's perplexity", "its own answer's perplexity")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
async def test_one_token_without_a_text_needs_no_probabilities(engine, monkeypatch):
    """Without a tokenizer an engine has no text either, and several ids."""
    assert ("has no text" in (await Server("").check(engine)).complaint()) == (engine == "trtllm")
    monkeypatch.setitem(globals(), "SAMPLED", (0,) * OWN_TOKENS)
    assert "repeats one token that has no text" in (await Server("").check(engine)).complaint()


@pytest.mark.parametrize("engine", [*SCORING, "trtllm"])
async def test_one_character_needs_no_probabilities(engine):
    assert '"!"' in (await Server("!!!!!!!!").check(engine)).complaint()


@pytest.mark.parametrize("text", [" the" * OWN_TOKENS, "\n" * OWN_TOKENS])
async def test_one_word_or_line_break_again_and_again_needs_no_probabilities(text):
    """TensorRT-LLM's own probabilities of a loop are near 1: it was taken for sane."""
    found = await Server(text, gives_ids=False, logprobs=told(OWN_TOKENS)).check("trtllm")
    assert "the output repeats" in found.complaint()


@pytest.mark.parametrize(("tokens", "share"), [(154, 1.0), (104, 0.5), (54, 0.0)])
async def test_sglang_tells_acceptance_by_what_a_verification_yields(tokens, share):
    page = (
        'sglang:spec_verify_calls_total{a="1"} 50.0\n'
        f'sglang:generation_tokens_total{{is_streaming="true"}} {tokens - 50}\n'
        'sglang:generation_tokens_total{is_streaming="false"} 50.0\n'
        'sglang:num_requests_total{is_streaming="false"} 4.0\n'
    )
    server = Server(page=page)
    found = await server.check("sglang", Speculation(method="nextn", tokens=2))
    assert found.accepted_share == pytest.approx(share)
    assert bool(found.complaint()) == (share == 0.0)


async def test_drafts_of_before_the_canary_are_not_held_against_it():
    page = "vllm:spec_decode_num_draft_tokens_total 10100\nvllm:spec_decode_num_accepted_tokens_total 550\n"
    server = Server(page=page)
    server.before = DraftTokenCounts(10_000, 500)
    found = await server.check("vllm", Speculation(method="mtp", tokens=2))
    assert found.accepted_share == pytest.approx(0.5)


async def test_llama_cpp_tells_acceptance_by_its_counters():
    page = "llamacpp:spec_decode_num_draft_tokens_total 400\nllamacpp:spec_decode_num_accepted_tokens_total 290\n"
    server = Server(page=page)
    server.before = DraftTokenCounts(300, 260)
    found = await server.check("llama.cpp", Speculation(method="mtp", tokens=2))
    assert found.accepted_share == pytest.approx(0.3)
