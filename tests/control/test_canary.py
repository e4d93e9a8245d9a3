import math

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sparkfleet.control.canary import (
    OWN_TOKENS,
    Probe,
    Sanity,
    Score,
    agreement,
    only_character,
    perplexity,
    sanity,
)
from sparkfleet.engines.base import Drafts
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.planning.plan import Speculation


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
        (Sanity(text_perplexity=50_000.0), "plain English is noise"),
        (Sanity(text_perplexity=8.0, own_perplexity=300.0), "own answer improbable"),
        (Sanity(text_perplexity=8.0, own_perplexity=9.0, own_agreement=0.3), "30% of its own tokens"),
        (
            Sanity(text_perplexity=8.0, method="mtp", accepted_share=0.05),
            "5.0% of the draft tokens (at least 10%)",
        ),
        (Sanity(text_perplexity=8.0, method="dflash", accepted_share=0.03), "at least 4%"),
        (Sanity(text_perplexity=math.inf), "plain English is noise"),
        (Sanity(only="!"), "'!' again and again"),
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


def test_the_one_character_of_an_answer():
    assert only_character("!!! !!\n!") == "!"
    assert only_character("!!?") == only_character(" ") == ""


def told(tokens, own=-0.1):
    """Log-probabilities of so many tokens, as in an answer."""
    return {"token_logprobs": [own] * tokens, "top_logprobs": [{"a": -0.1}] * tokens}


class Server:
    """Answers completions: `echo(body)` those that ask for a prompt's probabilities, `say(body)` the others."""

    def __init__(self, say, echo=None, page=""):
        self.say, self.echo, self.page = say, echo, page
        self.before = Drafts()

    async def completions(self, request):
        body = await request.json()
        answer = (self.echo or (lambda _: None))(body) if body.get("echo") else self.say(body)
        if answer is None:
            return web.json_response({"error": "echo is not supported"}, status=400)
        text, logprobs = answer
        count = 1 if body.get("echo") else body["max_tokens"]
        choice = {"text": text, "logprobs": logprobs}
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": count}})

    async def metrics(self, _):
        return web.Response(text=self.page)

    async def check(self, engine="vllm", speculation=None):
        engine, speculation = engine_by_name(engine), speculation or Speculation()
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get(engine.metrics_path, self.metrics)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            probe = Probe(session, str(server.make_url("")).rstrip("/"), "m", "t")
            return await sanity(probe, engine, speculation, self.before)


async def test_a_sound_engine():
    found = await Server(lambda _: ("it is", None), echo=lambda _: ("", told(60))).check()
    assert found.complaint() == ""
    assert found.unchecked() == ()
    assert found.own_perplexity == pytest.approx(math.exp(0.1))
    assert found.own_agreement == 1.0


async def test_tokens_that_the_model_did_not_choose():
    garbled = {"token_logprobs": [-8.0] * 60, "top_logprobs": [{"a": -0.01}] * 60}
    sound = told(60)
    found = await Server(
        lambda _: ("it is", None), echo=lambda body: ("", garbled if "it is" in body["prompt"] else sound)
    ).check()
    assert found.text_perplexity == pytest.approx(math.exp(0.1))
    assert "improbable" in found.complaint()


async def test_where_a_prompt_has_no_probabilities_those_of_the_answer_are_read():
    noise = told(OWN_TOKENS, own=-9.0)
    found = await Server(lambda body: ("so so", noise if body.get("logprobs") else None)).check("trtllm")
    assert "improbable" in found.complaint()
    assert found.unchecked() == ("a known text's perplexity",)


async def test_an_engine_that_tells_nothing_is_not_taken_for_checked():
    found = await Server(lambda _: ("garbage", None)).check("trtllm")
    assert found.complaint() == ""
    assert found.unchecked() == ("a known text's perplexity", "its own answer's perplexity")


async def test_one_character_needs_no_probabilities():
    found = await Server(lambda _: ("!!!!!!!!", None)).check("trtllm")
    assert "'!'" in found.complaint()


@pytest.mark.parametrize(("tokens", "share"), [(154, 1.0), (104, 0.5), (54, 0.0)])
async def test_sglang_tells_acceptance_by_what_a_verification_yields(tokens, share):
    page = (
        'sglang:spec_verify_calls_total{a="1"} 50.0\n'
        f'sglang:generation_tokens_total{{is_streaming="true"}} {tokens - 50}\n'
        'sglang:generation_tokens_total{is_streaming="false"} 50.0\n'
        'sglang:num_requests_total{is_streaming="false"} 4.0\n'
    )
    server = Server(lambda _: ("it is", None), echo=lambda _: ("", told(60)), page=page)
    found = await server.check("sglang", Speculation(method="nextn", tokens=2))
    assert found.accepted_share == pytest.approx(share)
    assert bool(found.complaint()) == (share == 0.0)


async def test_drafts_of_before_the_canary_are_not_held_against_it():
    page = "vllm:spec_decode_num_draft_tokens_total 10100\nvllm:spec_decode_num_accepted_tokens_total 550\n"
    server = Server(lambda _: ("it is", None), echo=lambda _: ("", told(60)), page=page)
    server.before = Drafts(10_000, 500)
    found = await server.check("vllm", Speculation(method="mtp", tokens=2))
    assert found.accepted_share == pytest.approx(0.5)
