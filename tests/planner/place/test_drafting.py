"""Speculative methods of one engine: what is tried, how deep, and the reason for the rest."""

import itertools

import pytest

from sparkfleet.checkpoints.io.licenses import License
from sparkfleet.knowledge.engines.method_support import METHOD_SUPPORT
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.place.drafting import METHODS, Drafts, depth_on, drafting_for
from sparkfleet.planner.place.stacks import ENGINES, Stack

MODEL = "Qwen/Qwen3.6-27B-FP8"
DEEPSEEK = "deepseek-ai/DeepSeek-V4-Flash-0731"
CLOSED = "incoai/GLM-5.3-Flash-DFlash2"


@pytest.fixture
def variant(ask):
    return lambda **fields: ask(**{"model": MODEL, **fields}).resolved()[0]


@pytest.fixture
def found(variant):
    """Drafting of a model on an engine, alone unless `concurrency` is given."""

    def found(engine, concurrency=1, *, named=None, open_only=False, checkpoint=None, **fields):
        asked = variant(**fields)
        facts = checkpoint or known_checkpoint(asked.model)
        return drafting_for(asked, Drafts(facts, named or {}, open_only), engine, concurrency)

    return found


def methods(drafting):
    return [str(one) for one in drafting.options]


def reasons(drafting):
    return {one.method: one.reason for one in drafting.excluded}


def test_sglang_tries_the_published_beam_then_spells_it_out(found):
    tried = methods(found("sglang"))
    assert tried[:2] == ["NEXTN k=5 top-4", "EAGLE k=5 top-4, 20 draft tokens"]
    assert tried[-1] == "no speculation"


def test_without_a_head_there_is_no_mtp(found):
    model = "Qwen/Qwen3-30B-A3B-FP8"
    assert methods(found("vllm", model=model)) == ["NGRAM k=4", "no speculation"]
    refused = found("vllm", model=model, speculation="mtp")
    assert refused.options == ()
    assert "no MTP head" in reasons(refused)["mtp"]


def test_a_pinned_method_is_the_only_one(found):
    assert methods(found("vllm", speculation={"method": "mtp", "tokens": 2})) == ["MTP k=2"]
    assert methods(found("vllm", speculation="none")) == ["no speculation"]


def test_a_drafter_has_to_be_named(found):
    refused = found("vllm", speculation="eagle3")
    assert refused.options == ()
    assert "set `speculation: {method: …, draft: …}`" in reasons(refused)["eagle3"]
    (only,) = found("vllm", speculation={"method": "dflash", "draft": "me/draft"}).options
    assert (only.draft, only.tokens) == ("me/draft", 10)


def test_vllm_has_no_nextn(found):
    refused = found("vllm", speculation="nextn")
    assert refused.options == ()
    assert "no such method" in reasons(refused)["nextn"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "model", [MODEL, "nvidia/Qwen3.6-27B-NVFP4", "Qwen/Qwen3-30B-A3B-FP8", "openai/gpt-oss-120b", DEEPSEEK]
)
@pytest.mark.parametrize("speculation", ["auto", "none", "dspark", "mtp"])
def test_every_method_is_tried_or_has_a_reason(found, engine, model, speculation):
    drafting = found(engine, model=model, speculation=speculation)
    tried = {one.method for one in drafting.options}
    assert tried | set(reasons(drafting)) == set(METHODS)
    assert not tried & set(reasons(drafting))
    assert all(one.reason for one in drafting.excluded)


@pytest.mark.parametrize("method", ["dspark", "dflash2"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_parallel_drafts_of_today_can_be_asked_for(found, engine, method):
    (only,) = found(engine, speculation={"method": method, "draft": "me/draft", "tokens": 5}).options
    assert only == Speculation(method=method, tokens=5, draft="me/draft")


def test_deepseeks_dspark_is_in_its_own_weights(found):
    (only,) = found("vllm", model=DEEPSEEK, speculation="dspark").options
    assert (only.method, only.draft, only.tokens) == ("dspark", None, 5)
    assert "DSPARK k=5" in methods(found("vllm", model=DEEPSEEK))


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (DEEPSEEK, "dspark"),
        ("deepseek-ai/DeepSeek-V4-Flash-DSpark", "dspark"),
        ("nvidia/DeepSeek-V4-Flash-0731-NVFP4", "dspark"),
        ("deepseek-ai/DeepSeek-V4-Flash", "mtp"),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "mtp"),
    ],
)
def test_deepseek_v4_has_dspark_or_an_mtp_head(found, model, method):
    """By the index of tensors: `mtp.0` to `mtp.2` are DSpark's in 0731; April's has one MTP block (vLLM PR 41834)."""
    drafting = found("vllm", model=model)
    assert {one.method for one in drafting.options} & {"dspark", "mtp"} == {method}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_config_of_dspark_declares_an_mtp_head_that_is_not_there(found, engine):
    """A checkpoint under any name: its config has both keys, its weights DSpark's blocks."""
    declared = {"declared_mtp_layers": 1, "mtp_layers": 3, "dspark_block": 5}
    checkpoint = known_checkpoint("deepseek-ai/DeepSeek-V4-Flash").model_copy(update=declared)
    head = "mtp" if engine == "vllm" else "nextn"
    for asked in ("auto", head):
        drafting = found(engine, checkpoint=checkpoint, model="/models/mine", speculation=asked)
        assert head not in {one.method for one in drafting.options}
    assert (
        reasons(drafting)[head] == "the checkpoint has DSpark in place of an MTP head: `speculation: dspark`"
    )


def test_inklings_dspark_is_loaded_by_sglang_only(found):
    """vLLM has no hidden states of Inkling for a draft (pull request 52184 is open)."""
    model = "thinkingmachines/Inkling-Small-NVFP4"
    assert "dspark" in {one.method for one in found("sglang", model=model).options}
    assert "published for this model with SGLang only" in reasons(found("vllm", model=model))["dspark"]


@pytest.mark.parametrize("block", [3, 6])
def test_the_depth_of_dspark_follows_the_block_of_the_checkpoint(found, block):
    """An unpublished model, whose config declares DSpark stages."""
    checkpoint = known_checkpoint(MODEL).model_copy(update={"dspark_block": block})
    (only,) = found("sglang", checkpoint=checkpoint, speculation="dspark").options
    assert (only.draft, only.tokens) == (None, block)


@pytest.mark.parametrize(("method", "expected"), [("dflash2", 7), ("dflash", 7), ("dspark", 8)])
def test_the_depth_follows_the_block_of_a_draft_that_was_read(found, method, expected):
    draft = known_checkpoint(MODEL).model_copy(update={"draft_block": 8})
    (only,) = found(
        "vllm", named={"me/draft": draft}, speculation={"method": method, "draft": "me/draft"}
    ).options
    assert only.tokens == expected


class TestDepthByLoad:
    BUSY = Speculation(method="mtp", tokens=4, busy=2, busy_from=8)

    def test_the_published_depths_are_both_proposed(self, found):
        (mtp,) = (
            one for one in found("vllm", model="nvidia/Qwen3.6-27B-NVFP4").options if one.method == "mtp"
        )
        assert str(mtp) == "MTP k=3 (2 from 32 requests)"

    @pytest.mark.parametrize(
        ("engine", "version", "method", "kept"),
        [
            ("vllm", "0.23.0", "mtp", False),
            ("vllm", "0.24.0", "mtp", True),
            ("vllm", "0.28.0", "dflash2", True),
            ("vllm", "", "mtp", False),
            ("sglang", "0.5.12", "nextn", False),
            ("sglang", "0.5.13", "nextn", True),
            ("sglang", "0.5.23", "dflash2", False),
            ("sglang", "0.5.23", "dspark", False),
            ("trtllm", "1.3.0rc12", "eagle3", False),
            ("trtllm", "1.3.0rc20", "eagle3", True),
            ("trtllm", "1.4.0", "dspark", False),
        ],
    )
    def test_a_release_with_a_schedule_gets_both_and_others_the_best_for_the_load(
        self, engine, version, method, kept
    ):
        stack = Stack(engine, version, "container", "i")
        wanted = self.BUSY.model_copy(update={"method": method})
        if kept:
            assert depth_on(wanted, stack, 1) == depth_on(wanted, stack, 16) == wanted
        else:
            depths = [depth_on(wanted, stack, load) for load in (1, 7, 8, 64)]
            assert [one.tokens for one in depths] == [4, 4, 2, 2]
            assert {one.busy for one in depths} == {None}

    def test_a_beam_has_one_depth(self):
        beam = Speculation(method="nextn", tokens=5, topk=4, busy=3, busy_from=8)
        assert depth_on(beam, Stack("sglang", "0.5.23", "container", "i"), 8).busy is None

    def test_a_spelled_chain_stays_one_longer_than_its_drafts(self):
        chain = Speculation(method="nextn", tokens=4, beam_tokens=5, busy=2, busy_from=8)
        assert (chain.at(8).tokens, chain.at(8).beam_tokens) == (2, 3)
        assert (chain.at(1).tokens, chain.at(1).beam_tokens) == (4, 5)

    def test_a_limit_holds_alone_and_under_load(self):
        assert str(self.BUSY.at_most(3)) == "MTP k=3 (2 from 8 requests)"
        assert str(self.BUSY.at_most(2)) == "MTP k=2"
        assert str(self.BUSY.at_most(9)) == str(self.BUSY)


class TestLicences:
    def test_a_draft_that_is_not_open_source_is_excluded_where_the_deployment_requires_it(self, found):
        asked = {"method": "dflash2", "draft": CLOSED}
        refused = found("vllm", open_only=True, speculation=asked)
        assert refused.options == ()
        assert reasons(refused)["dflash2"] == (
            f"license of the draft {CLOSED} cc-by-nc-nd-4.0: not open source, but the deployment requires `license: open`"
        )
        assert found("vllm", speculation=asked).options

    def test_a_draft_without_a_known_licence_may_not_be_open(self, found):
        refused = found("vllm", open_only=True, speculation={"method": "dflash2", "draft": "me/draft"})
        assert "not known: it may not be open source" in reasons(refused)["dflash2"]

    def test_a_draft_that_was_read_is_taken_at_its_own_word(self, found):
        licence = License(id="apache-2.0", kind="open-source", source="README.md")
        draft = known_checkpoint(MODEL).model_copy(update={"license": licence})
        asked = {"method": "dflash2", "draft": "me/draft"}
        assert found("vllm", open_only=True, named={"me/draft": draft}, speculation=asked).options

    def test_heads_in_the_checkpoint_have_its_licence(self, found):
        assert "MTP k=3" in " ".join(methods(found("vllm", model="nvidia/Qwen3.6-27B-NVFP4", open_only=True)))


def test_an_engine_that_has_a_method_is_one_that_deployments_can_name():
    pairs = [(one.engine, one.method) for one in METHOD_SUPPORT.content.methods]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= set(itertools.product(ENGINES, METHODS))
    assert all(one.since for one in METHOD_SUPPORT.content.schedules)


def test_a_draft_that_nobody_measured_is_taken_if_its_method_or_its_name_is_set(found):
    model = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
    draft = f"{model}-DSpark"
    assert not any("DSpark" in one for one in methods(found("vllm", model=model)))
    for speculation in ("dspark", {"method": "dspark", "draft": draft}):
        (only,) = found("vllm", model=model, speculation=speculation).options
        assert (only.method, only.draft, only.tokens) == ("dspark", draft, 3)
    (only,) = found("sglang", model=model, speculation="dflash").options  # what was measured has no name
    assert (only.draft, only.tokens) == (f"{model}-DFlash", 6)


def test_a_published_draft_that_nobody_measured_is_named_in_the_reason(found):
    reason = reasons(found("vllm", model="Qwen/Qwen3-Coder-Next-FP8"))["dflash"]
    assert reason.startswith("z-lab/Qwen3-Coder-Next-DFlash is published, and nobody has measured it")
    assert reason.endswith("to try it: `speculation: dflash`")


def test_qwen3_next_has_a_head_that_its_config_does_not_declare_and_coder_next_none(found):
    assert "MTP k=2" in methods(found("vllm", model="Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"))
    assert "no MTP head" in reasons(found("vllm", model="Qwen/Qwen3-Coder-Next-FP8"))["mtp"]


def test_a_draft_by_name_has_its_own_depth_and_licence(found):
    model, draft = "openai/gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3-throughput"
    (only,) = found("trtllm", model=model, speculation={"method": "eagle3", "draft": draft}).options
    assert only.draft == draft
    refused = found("trtllm", model=model, speculation={"method": "eagle3", "draft": draft}, open_only=True)
    assert "nvidia-open-model-license: not open source" in reasons(refused)["eagle3"]


def test_a_head_that_one_format_was_run_with_is_expected_in_the_others(found):
    """The checkpoint in FP8 is not read yet; MTP was published in NVFP4."""
    model = "XiaomiMiMo/MiMo-V2.5"
    assert known_checkpoint(model).declared_mtp_layers == 0
    assert methods(found("vllm", model=model))[0] == "MTP k=1"


def test_an_engine_has_no_head_where_the_drafter_is_a_checkpoint_of_its_own(found):
    """Gemma 4 has none; vLLM drafts with an assistant, which is named."""
    model = "nvidia/Gemma-4-26B-A4B-NVFP4"
    (mtp, *_) = found("vllm", model=model).options
    assert (mtp.method, mtp.draft) == ("mtp", "google/gemma-4-26B-A4B-it-assistant")
    assert "nextn" not in {one.method for one in found("sglang", model=model).options}


@pytest.mark.parametrize(
    ("pinned", "tokens"),
    [
        ("mtp", 4),
        ({"method": "mtp", "draft": "google/gemma-4-26B-A4B-it-assistant"}, 4),
        ({"method": "mtp", "tokens": 3, "draft": "google/gemma-4-26B-A4B-it-assistant"}, 3),
    ],
)
def test_a_pinned_head_may_be_a_checkpoint_of_its_own(found, pinned, tokens):
    (mtp,) = found("vllm", model="nvidia/Gemma-4-26B-A4B-NVFP4", speculation=pinned).options
    assert (mtp.method, mtp.draft, mtp.tokens) == ("mtp", "google/gemma-4-26B-A4B-it-assistant", tokens)


@pytest.mark.parametrize("draft", [None, "google/gemma-4-26B-A4B-it-assistant"])
def test_an_engine_that_does_not_load_the_drafter_has_no_head(found, draft):
    pinned = {"method": "nextn", "draft": draft} if draft else "nextn"
    refused = found("sglang", model="nvidia/Gemma-4-26B-A4B-NVFP4", speculation=pinned)
    assert refused.options == ()
    assert "no MTP head" in reasons(refused)["nextn"]
