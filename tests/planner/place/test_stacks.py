import pytest

from sparkfleet.hostfacts.node import InstalledEngine
from sparkfleet.knowledge.engines.images import IMAGES, images_of
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.knowledge.published.left_out import families_left_out
from sparkfleet.perf.latency.factor_keys import release_of
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.perf.predictor import Predictor
from sparkfleet.perf.weight_formats import format_of
from sparkfleet.planner.place.stacks import (
    _known_images,
    images_by_name,
    in_order,
    may_requantize,
    proves,
    splits_for,
    stacks_for,
    unable,
    unproven_images,
)

MODEL = "Qwen/Qwen3.6-27B-FP8"


@pytest.fixture
def variant(ask):
    return lambda **fields: ask(**{"model": MODEL, **fields}).resolved()[0]


class TestStacks:
    def test_the_pinned_image_is_the_only_one(self, variant):
        found = stacks_for(variant(image="vllm/vllm-openai:v0.26.0"), "vllm", "fp8", ())
        assert [stack.version for stack in found.options] == ["0.26.0"]
        assert stacks_for(variant(image="vllm/vllm-openai:v0.26.0"), "sglang", "fp8", ()).options == ()

    def test_unproven_releases_have_a_known_version(self):
        found = [image.image for image in unproven_images(MODEL, "fp8", "vllm")]
        assert {"vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.33.0"} <= set(found)
        assert "vllm/vllm-openai:cu130-nightly" not in found
        assert all(
            one.status == "unproven" and one.engine_version
            for one in IMAGES.content.images
            if one.image in found
        )

    def test_an_unknown_image_is_obeyed_without_a_version(self, variant):
        (stack,) = stacks_for(variant(image="example.org/mine:1", engine="vllm"), "vllm", "fp8", ()).options
        assert (stack.version, stack.name) == ("", "vLLM (mine:1)")

    @pytest.mark.parametrize(
        ("image", "engines"),
        [
            ("me/my-vllm:1", ["vllm"]),
            ("me/sglang-spark:1", ["sglang"]),
            ("me/tensorrt-llm:1", ["trtllm"]),
            ("me/mine:1", []),
            ("me/vllm-and-sglang:1", []),
        ],
    )
    def test_the_engine_of_an_unknown_image_by_its_name(self, variant, image, engines):
        found = [
            e for e in ("vllm", "sglang", "trtllm") if stacks_for(variant(image=image), e, "fp8", ()).options
        ]
        assert found == engines

    def test_of_a_moved_tag_a_pull_gives_the_last_build(self, variant):
        versions = [stack.version for stack in stacks_for(variant(), "sglang", "fp8", ()).options]
        assert "0.5.12 re-tag" in versions
        assert "0.5.12 original" not in versions

    def test_a_pinned_tag_that_was_moved_has_no_build(self, variant):
        (stack,) = stacks_for(variant(image="scitrera/dgx-spark-sglang:0.5.12"), "sglang", "fp8", ()).options
        assert stack.version == "0.5.12"
        assert stack.known is None

    def test_of_builds_without_a_version_the_newest_is_the_pinned_one(self, variant):
        """Builds that rules cannot tell apart: the tag means what a pull gives."""
        pinned = variant(image="eugr/spark-vllm-b12x:latest")
        (stack,) = stacks_for(pinned, "vllm", "nvfp4", ()).options
        assert stack.known is not None
        assert stack.known.id == "eugr-b12x"
        assert stack.known.disk_tables("qwen4_exp") is not None

    def test_a_release_that_nobody_ran_is_never_before_one_that_works(self, variant):
        options = stacks_for(variant(), "vllm", "nvfp4", ()).options
        proven = [stack.known.status for stack in options if stack.known]
        assert "unproven" in proven
        assert proven[0] == "works"

    def test_an_image_without_a_version_is_behind_a_release_that_nobody_ran(self, variant):
        """It may be older than the model, and no rule about versions finds it."""
        options = stacks_for(variant(), "sglang", "nvfp4", ()).options
        images = [stack.image for stack in options]
        assert images.index("lmsysorg/sglang:v0.5.23") < images.index("nvcr.io/nvidia/sglang:25.11-py3")

    def test_of_releases_that_nobody_ran_one_whose_flags_were_read_comes_first(self, variant):
        """Two had the same month as their date, so their order in the file decided."""
        unproven = [image.image for image in unproven_images(MODEL, "fp8", "vllm")]
        assert unproven[:3] == [
            "vllm/vllm-openai:v0.32.0",
            "vllm/vllm-openai:v0.33.0",
            "vllm/vllm-openai:v0.30.0-aarch64",
        ]

    @pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp"])
    @pytest.mark.parametrize("quant", ["nvfp4", "fp8", "mxfp4", "bf16"])
    @pytest.mark.parametrize("model", [MODEL, "deepseek-ai/DeepSeek-V4-Flash-0731", "openai/gpt-oss-120b"])
    def test_the_order_of_the_file_decides_nothing(self, variant, monkeypatch, engine, quant, model):
        """But between builds of one tag."""

        def images():
            _known_images.cache_clear()
            return [one.image for one in stacks_for(variant(model=model), engine, quant, ()).options]

        before, known = images(), IMAGES.content
        turned = [one for one in reversed(known.images) if len(images_of(one.image)) == 1]
        moved = [one for one in known.images if len(images_of(one.image)) > 1]
        with monkeypatch.context() as patched:
            patched.setattr(IMAGES, "content", known.model_copy(update={"images": (*turned, *moved)}))
            after = images()
        _known_images.cache_clear()
        assert after == before

    def test_what_was_seen_to_work_comes_first(self, variant):
        options = stacks_for(variant(), "vllm", "gptq-int4", ()).options
        assert options[0].image == "nvcr.io/nvidia/vllm:26.04-py3"
        assert (
            options[0].evidence
            == max(stack.evidence for stack in options)
            > min(stack.evidence for stack in options)
        )

    def test_broken_images_are_rejected_with_their_source(self, variant):
        found = stacks_for(variant(model="nvidia/GLM-5.3-Flash-NVFP4"), "vllm", "nvfp4", ())
        broken = {
            image.image
            for image in IMAGES.content.images
            if image.status == "broken" and image.engine == "vllm"
        }
        assert "ghcr.io/tonyd2wild/vllm-glm53-flash:sm121-v11-dflash2" in broken
        assert broken <= {one.what for one in found.rejected}
        assert all(one.source for one in found.rejected)
        assert not broken & {stack.image for stack in found.options}

    def test_what_no_registry_has_is_not_chosen(self, variant):
        found = stacks_for(variant(model="openai/gpt-oss-120b"), "vllm", "mxfp4", ())
        assert (
            "only where it was built"
            in {one.what: one.reason for one in found.rejected}["vllm-node-mxfp4:latest"]
        )
        assert all("/" in stack.image for stack in found.options)

    def test_only_a_build_that_requantizes_makes_published_rates_doubtful(self):
        assert may_requantize("openai/gpt-oss-120b", "mxfp4", "vllm")
        assert not may_requantize("openai/gpt-oss-120b", "mxfp4", "llama.cpp")
        assert images_by_name("deepseek-ai/DeepSeek-V4-Flash-0731", "fp8+mxfp4-experts")
        assert not may_requantize("deepseek-ai/DeepSeek-V4-Flash-0731", "fp8+mxfp4-experts", "vllm")

    def test_images_made_for_one_family_serve_only_it(self, variant):
        other = stacks_for(variant(), "vllm", "nvfp4", ()).options
        own = stacks_for(variant(model="deepseek-ai/DeepSeek-V4-Flash"), "vllm", "nvfp4", ()).options
        assert "dspark" not in " ".join(stack.image for stack in other)
        assert "dspark" in " ".join(stack.image for stack in own)

    def test_of_images_without_a_version_one_that_ran_the_family_counts_by_its_date(self, variant):
        """NVIDIA serves Qwen3.8-Flash-Next with a build whose version is a fork's; stock releases need patches for it."""
        own = stacks_for(variant(model="nvidia/Qwen3.8-Flash-Next-NVFP4"), "vllm", "nvfp4", ()).options
        other = stacks_for(variant(), "vllm", "nvfp4", ()).options
        assert own[0].image == "eugr/spark-vllm-b12x:latest"
        assert other[0].version == "0.28.0"

    def test_a_format_of_patched_builds_runs_on_those_that_were_seen_with_it_only(self, ask, spark):
        model = "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw"
        glm = ask(model=model).resolved()[0]
        home = {"vllm": InstalledEngine(python="/opt/vllm/bin/python", version="0.30.0")}
        node = spark("a").model_copy(update={"engines": home})
        found = stacks_for(glm, "vllm", "exl3", (node,)).options
        assert [one.image for one in found] == [
            "ghcr.io/miaai-lab/glm-5.3-flash-2x-dgx-sparks:exl3",
            "ghcr.io/gitcommit90/glm-5.3-one-spark:general23",
        ]
        assert stacks_for(glm, "sglang", "exl3", (node,)).options == ()

    def test_what_was_seen_on_an_image_of_a_family_is_left_out_with_it(self, ask, variant):
        """The image can still be pulled, as a drafter can; that it works is what the family's owners published."""
        glm = ask(model="Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw").resolved()[0]
        with families_left_out({"any"}):
            (first, *_) = stacks_for(glm, "vllm", "exl3", ()).options
            others = stacks_for(variant(), "vllm", "nvfp4", ()).options
        assert (first.known.status, first.known.methods, first.known.quants) == ("unproven", (), ())
        assert first.evidence == pytest.approx(0.95**2)
        assert others == stacks_for(variant(), "vllm", "nvfp4", ()).options, (
            "images for any model are not the family's"
        )
        (seen, *_) = stacks_for(glm, "vllm", "exl3", ()).options
        assert (seen.known.status, seen.evidence) == ("works", 1.0)

    def test_an_environment_on_the_nodes(self, variant, spark):
        home = {"vllm": InstalledEngine(python="/opt/vllm/bin/python", version="0.30.0")}
        node = spark("a").model_copy(update={"engines": home})
        (stack,) = stacks_for(variant(runtime="process"), "vllm", "fp8", (node,)).options
        assert (stack.runtime, stack.python) == ("process", "/opt/vllm/bin/python")
        found = stacks_for(variant(runtime="process"), "vllm", "fp8", (node, spark("b")))
        assert found.options == ()
        assert "not installed" in found.rejected[0].reason

    def test_trained_drafters_look_for_an_image_that_was_seen_with_them(self, variant):
        options = stacks_for(variant(), "vllm", "fp8", ()).options
        assert proves(in_order(options, Speculation(method="dflash", tokens=3))[0], "dflash") is True
        assert in_order(options, Speculation(method="ngram", tokens=4)) == options

    @pytest.mark.parametrize(
        ("image", "speculation", "expected"),
        [
            ("vllm/vllm-openai:v0.27.0", {"method": "dflash2", "tokens": 7}, "it came with 0.28"),
            ("vllm/vllm-openai:v0.28.0", {"method": "dflash2", "tokens": 7}, ""),
            ("vllm/vllm-openai:v0.24.0", {"method": "dspark", "tokens": 7}, "it came with 0.25"),
            ("example.org/vllm-mine:1", {"method": "dspark", "tokens": 7}, ""),
            (
                "vllm/vllm-openai:v0.28.0",
                {"method": "dspark", "tokens": 7, "draft": "RadixArk/Qwen3.8-27B-DSpark"},
                "0.29 and later do",
            ),
            (
                "lmsysorg/sglang:v0.5.23",
                {"method": "nextn", "tokens": 5, "topk": 4, "beam_tokens": 20},
                "SGLang 0.5.23 starts NEXTN with the same flags",
            ),
            ("lmsysorg/sglang:v0.5.12", {"method": "nextn", "tokens": 5, "topk": 4, "beam_tokens": 20}, ""),
        ],
    )
    def test_a_release_that_is_too_old_for_a_method_is_not_tried(self, variant, image, speculation, expected):
        engine = "sglang" if "sglang" in image else "vllm"
        (stack,) = stacks_for(variant(image=image), engine, "fp8", ()).options
        version = image.partition(":v")[2]
        reason = unable(stack._replace(version=version, known=None), Speculation(**speculation))
        assert (expected in reason) if expected else reason == ""

    def test_a_build_that_was_seen_with_a_method_has_it_whatever_its_number(self, variant):
        (stack,) = stacks_for(
            variant(image="ghcr.io/anemll/dspark-vllm-gx10:0.1.1"), "vllm", "fp8", ()
        ).options
        assert unable(stack._replace(version="0.1.0"), Speculation(method="dspark", tokens=5)) == ""


class TestSplits:
    def test_heads_have_to_be_divided(self, variant):
        predictor = Predictor(known_checkpoint(MODEL))  # 24 heads, 4 KV heads
        assert Split(2) in splits_for(variant(), predictor, 2)
        assert Split(8) in splits_for(variant(), predictor, 8), "KV heads are copied"
        assert splits_for(variant(), predictor, 3) == (Split(1, 3),)

    def test_experts_can_be_dealt_out(self, variant):
        predictor = Predictor(known_checkpoint("Qwen/Qwen3-30B-A3B-FP8"))
        assert splits_for(variant(), predictor, 2) == (Split(2), Split(2, 1, 2), Split(1, 2))

    def test_what_is_pinned_is_obeyed(self, variant):
        predictor = Predictor(known_checkpoint("Qwen/Qwen3-30B-A3B-FP8"))
        pinned = variant(parallel={"tp": 2, "ep": 2})
        assert splits_for(pinned, predictor, 1) == ()
        assert splits_for(pinned, predictor, 2) == (Split(2, 1, 2),)
        assert splits_for(variant(parallel={"pp": 2}), predictor, 4) == (Split(2, 2), Split(2, 2, 2))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MODEL, "fp8"),
        ("nvidia/Qwen3.6-27B-NVFP4", "nvfp4"),
        ("openai/gpt-oss-120b", "mxfp4"),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "int4"),
        ("Qwen/Qwen3-30B-A3B", "bf16"),
        ("rdtand/Qwen3.6-35B-A3B-PrismaQuant-4.75bit-vllm", "prismaquant"),
    ],
)
def test_formats_as_the_speed_model_names_them(model, expected):
    assert format_of(known_checkpoint(model)) == expected


def test_releases_as_factors_name_them():
    assert release_of("vllm/vllm-openai:v0.27.1", "0.27.1") == "0.27"
    assert release_of("scitrera/dgx-spark-sglang:0.5.12", "0.5.12") == "scitrera"
    assert release_of("", "") == ""
