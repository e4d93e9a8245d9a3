"""Plans of a model by its name, without a deployment's file."""

import json

import pytest

from sparkfleet.cli.exit_codes import Exit


class TestWithoutFiles:
    @pytest.fixture(autouse=True)
    def nowhere(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("SPARKFLEET_INVENTORY", raising=False)

    def test_a_model_is_planned_for_sparks_that_nobody_has(self, sparkfleet):
        code, out, err = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--offline")
        assert (code, err) == (Exit.PENDING, "")
        assert "gpt-oss-120b   objective interactive" in out
        assert "2 Sparks (assumed, not read), 1 link" in out
        assert "`sparkfleet apply openai/gpt-oss-120b` serves it as gpt-oss-120b" in out
        assert "`name: gpt-oss-120b`, `model: openai/gpt-oss-120b`" in out
        assert "  next        `sparkfleet init HOST…` lists your Sparks in inventory.yaml\n" in out

    def test_a_faster_gguf_that_the_plan_names_is_among_the_next_commands(self, sparkfleet):
        _, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "1", "--offline")
        assert (
            "`sparkfleet apply openai/gpt-oss-120b` serves it as gpt-oss-120b\n"
            "              `sparkfleet apply ggml-org/gpt-oss-120b-GGUF:MXFP4` serves a GGUF of it:"
            " 55.7 tok/s for one user published, 54.1 predicted, 1.6×\n"
        ) in out

    def test_the_same_bits_on_fewer_sparks_are_among_the_next_commands(self, sparkfleet):
        """`suggest` had 54 tok/s of llama.cpp on one Spark, `plan` 50 of vLLM on both and no other line."""
        _, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--offline")
        assert "`sparkfleet apply ggml-org/gpt-oss-120b-GGUF:MXFP4` serves a GGUF of it:" in out
        assert "published, 54.1 predicted, 1.1×, on one Spark\n" in out

    @pytest.mark.parametrize(
        ("model", "sparks", "best"),
        [
            ("zai-org/GLM-5.3-Flash", "2", "RedHatAI/GLM-5.3-Flash-NVFP4"),
            ("Qwen/Qwen3.5-122B-A10B", "1", "Intel/Qwen3.5-122B-A10B-int4-AutoRound"),
            ("Qwen/Qwen3.8-Flash-Next", "2", "nvidia/Qwen3.8-Flash-Next-NVFP4"),
        ],
    )
    def test_the_best_variant_of_what_does_not_fit_is_the_next_command(self, sparkfleet, model, sparks, best):
        """Such plans had no next command, or the one of a GGUF that is slower."""
        code, out, _ = sparkfleet("plan", model, "--sparks", sparks, "--offline")
        assert code == Exit.INFEASIBLE
        steps = [line for line in out.splitlines() if "`sparkfleet apply " in line]
        assert len(steps) == 1
        assert f"`sparkfleet apply {best}` serves it in " in steps[0]
        assert ", which fits: " in steps[0]
        assert " tok/s for one user predicted" in steps[0]

    def test_what_nvidias_recipes_serve_is_among_the_variants(self, sparkfleet):
        _, out, _ = sparkfleet("plan", "Qwen/Qwen3.8-Flash-Next", "--sparks", "2", "--offline")
        text = " ".join(out.split())
        assert (
            "`model: local-inference-lab/Qwen3.8-Flash-Next-NVFP4` (184 GB, assumed from its name): fits on"
            in text
        )
        assert "; in NVIDIA's recipes; quality not measured" in text

    def test_the_best_variant_of_what_fits_may_be_no_gguf(self, sparkfleet):
        _, out, _ = sparkfleet("plan", "Qwen/Qwen3.8-27B", "--sparks", "1", "--offline")
        assert "`sparkfleet apply nvidia/Qwen3.8-27B-NVFP4` serves it in NVFP4: " in out
        assert "serves a GGUF" not in out

    def test_a_gguf_that_alone_fits_is_the_next_command(self, sparkfleet):
        code, out, _ = sparkfleet("plan", "MiniMaxAI/MiniMax-M2.7", "--sparks", "1", "--offline")
        assert code == Exit.INFEASIBLE
        gguf = "unsloth/MiniMax-M2.7-GGUF:UD-IQ4_XS"
        assert f"\n              `sparkfleet apply {gguf}` serves a GGUF of it, which fits: " in out
        assert "apply MiniMaxAI" not in out

    def test_a_gguf_and_a_file_have_no_such_command(self, sparkfleet, tmp_path):
        (tmp_path / "model.yaml").write_text("name: gpt-oss-120b\nmodel: openai/gpt-oss-120b\n")
        for given in ("model.yaml", "ggml-org/gpt-oss-120b-GGUF:MXFP4"):
            _, out, _ = sparkfleet("plan", given, "--sparks", "1", "--offline")
            assert "serves a GGUF" not in out

    def test_several_models_of_an_inventory_are_served_by_one_command(self, sparkfleet, two_sparks):
        """Each alone would be planned without the other, and without `-i` for another fleet."""
        models = ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B")
        _, out, _ = sparkfleet("plan", *models, "-i", two_sparks, "--assume", "dgx-spark", "--offline")
        command = f"`sparkfleet apply -i {two_sparks} {' '.join(models)}` serves them as qwen3-32b, qwen3-8b"
        assert command in " ".join(out.split())
        assert out.count("  next  ") == 1

    def test_the_usual_inventory_is_named_if_the_variable_names_another(
        self, sparkfleet, two_sparks, tmp_path, monkeypatch
    ):
        """`apply` without it would be for the other fleet."""
        (tmp_path / "inventory.yaml").write_bytes(two_sparks.read_bytes())
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(tmp_path / "other.yaml"))
        asked = ("plan", "Qwen/Qwen3-8B", "-i", "inventory.yaml", "--assume", "dgx-spark", "--offline")
        assert "`sparkfleet apply -i inventory.yaml Qwen/Qwen3-8B`" in sparkfleet(*asked)[1]

    @pytest.mark.parametrize("file", ["inventory.yaml", "of-the-variable.yaml"])
    def test_an_inventory_that_is_there_need_not_be_made(self, sparkfleet, tmp_path, monkeypatch, file):
        (tmp_path / file).write_text("fleet: home\n")
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(tmp_path / file))
        _, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--offline")
        assert "  next        `sparkfleet apply openai/gpt-oss-120b` serves it" in out

    def test_its_plan_is_that_of_a_file_and_an_inventory(self, sparkfleet, two_sparks, tmp_path):
        (tmp_path / "model.yaml").write_text("name: gpt-oss-120b\nmodel: openai/gpt-oss-120b\n")
        _, by_file, _ = sparkfleet("plan", "model.yaml", "-i", two_sparks, "--assume", "dgx-spark", "--json")
        _, by_name, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "--json")
        assert json.loads(by_name) == json.loads(by_file)

    def test_options_are_the_fields_of_a_file(self, sparkfleet, tmp_path):
        fields = "context: 65536\nconcurrency: 2\nobjective: throughput\ncontent: agent\n"
        (tmp_path / "model.yaml").write_text(f"name: gpt-oss-120b\nmodel: openai/gpt-oss-120b\n{fields}")
        _, by_file, _ = sparkfleet("plan", "model.yaml", "--sparks", "1", "--offline", "--json")
        options = ("--context", 65536, "--concurrency", 2, "--objective", "throughput", "--content", "agent")
        model = ("openai/gpt-oss-120b", "--sparks", "1", "--offline")
        _, by_name, _ = sparkfleet("plan", *model, *options, "--json")
        assert json.loads(by_name) == json.loads(by_file)
        _, out, _ = sparkfleet("plan", *model, *options)
        words = " ".join(map(str, options))
        assert f"`sparkfleet apply openai/gpt-oss-120b {words}` serves it as gpt-oss-120b" in out
        assert f"`sparkfleet apply ggml-org/gpt-oss-120b-GGUF:MXFP4 {words}` serves a GGUF of it" in out
        lines = ", ".join(f"`{line}`" for line in fields.splitlines())
        assert f"`name: gpt-oss-120b`, `model: openai/gpt-oss-120b`, {lines}\n" in out

    def test_options_are_for_the_commands_of_a_model_as_well(self, sparkfleet):
        model = ("openai/gpt-oss-120b", "--sparks", "1", "--offline")
        code, out, _ = sparkfleet("apply", "--dry-run", *model, "--context", 16384)
        assert code == 0
        assert "--max-model-len 16384" in out

    @pytest.mark.parametrize("verb", [("plan",), ("apply", "--dry-run")])
    def test_a_file_has_its_own_fields(self, sparkfleet, tmp_path, verb):
        (tmp_path / "model.yaml").write_text("name: a\nmodel: openai/gpt-oss-120b\n")
        given = ("openai/gpt-oss-20b", "model.yaml", "--sparks", "1", "--context", 65536, "--content", "code")
        code, out, err = sparkfleet(*verb, *given)
        assert (code, out) == (Exit.ERROR, "")
        assert (
            "--context, --content: for models that are given by their names. model.yaml is no model." in err
        )
        assert "Write `context: 65536`, `content: code` into it." in err

    def test_an_option_has_the_limits_of_its_field(self, sparkfleet):
        code, _, err = sparkfleet("plan", "openai/gpt-oss-20b", "--sparks", "1", "--context", 10**12)
        assert code == Exit.ERROR
        assert "--context 1000000000000: Input should be less than or equal to" in err

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("128K", "Expected a whole number of tokens. Did you mean 131072?"),
            ("0", 'found "0". Expected a whole number of tokens.'),
            ("1e5", 'found "1e5". Expected a whole number of tokens.'),
        ],
    )
    def test_a_context_that_is_no_number_has_the_number_that_is_meant(self, sparkfleet, given, expected):
        code, out, err = sparkfleet("plan", "openai/gpt-oss-20b", "--sparks", "1", "--context", given)
        assert (code, out) == (Exit.ERROR, "")
        assert expected in err

    def test_a_name_that_is_nearly_a_known_one_is_planned_with_a_warning(self, sparkfleet):
        code, out, err = sparkfleet("plan", "nvidia/Qwen3.8-27B-NVFP5", "--sparks", "1", "--offline")
        assert code == Exit.PENDING
        assert "by the pattern of" in out
        assert err == (
            "warning: nvidia/Qwen3.8-27B-NVFP5 is no known name, and the Hub has not confirmed it: the shapes of"
            " Qwen/Qwen3.5-27B are assumed. Did you mean `sparkfleet plan nvidia/Qwen3.8-27B-NVFP4`?\n"
        )
        assert (
            "Did you mean" in sparkfleet("apply", "--dry-run", "nvidia/Qwen3.8-27B-NVFP5", "--sparks", "1")[2]
        )

    def test_the_commands_of_a_model(self, sparkfleet):
        code, out, err = sparkfleet("apply", "--dry-run", "openai/gpt-oss-120b", "--sparks", "1")
        assert (code, err) == (0, "")
        assert "--served-model-name gpt-oss-120b" in out

    def test_without_an_inventory_there_is_a_hint(self, sparkfleet):
        code, _, err = sparkfleet("plan", "openai/gpt-oss-120b")
        assert code == Exit.ERROR
        assert "`--sparks 2` plans for two Sparks without one." in err

    def test_sparks_and_an_inventory_exclude_each_other(self, sparkfleet, two_sparks):
        code, out, err = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "2", "-i", two_sparks)
        assert (code, out) == (Exit.ERROR, "")
        assert "`--sparks` and `--inventory` are both given." in err

    def test_an_inventory_of_the_environment_is_not_used(self, sparkfleet, two_sparks, monkeypatch):
        monkeypatch.setenv("SPARKFLEET_INVENTORY", str(two_sparks))
        code, out, _ = sparkfleet("plan", "openai/gpt-oss-120b", "--sparks", "1")
        assert code == Exit.PENDING
        assert "1 Spark (assumed, not read)" in out

    def test_apply_does_not_serve_on_assumed_sparks(self, sparkfleet):
        code, out, err = sparkfleet("apply", "openai/gpt-oss-120b", "--sparks", "2")
        assert (code, out) == (Exit.ERROR, "")
        assert "--sparks needs --dry-run." in err


def methods_of(plan):
    """Engine and method of each rung of a plan."""
    (group, *_) = plan["deployments"][0]["plan"]["groups"]
    candidates = (rung["candidate"] for rung in group["ladder"])
    return [(one["engine"], one["speculation"]["method"]) for one in candidates]


class TestNamesThatOwnersType:
    """Of each, the source is in the rule or the entry that it names."""

    @pytest.fixture
    def rungs(self, sparkfleet):
        def rungs(model, sparks):
            code, out, err = sparkfleet("plan", model, "--sparks", sparks, "--offline", "--json")
            assert (code, err) == (Exit.PENDING, "")
            return methods_of(json.loads(out))

        return rungs

    @pytest.mark.parametrize(
        "draft",
        ["z-lab/Qwen3.8-27B-DFlash2", "google/gemma-4-31B-it-assistant", "nvidia/gpt-oss-120b-Eagle3-v3"],
    )
    def test_a_draft_is_not_planned_as_its_target(self, sparkfleet, draft):
        code, out, err = sparkfleet("plan", draft, "--sparks", "1", "--offline")
        assert (code, out) == (Exit.ERROR, "")
        assert f"{draft} is a draft for " in err
        assert f"draft: {draft}" in err

    def test_a_head_that_does_not_load_is_no_rung(self, rungs):
        """glm53-nvidia-mtp, sglang-dsa-no-backend: what remains is what two authors ran."""
        assert rungs("nvidia/GLM-5.3-Flash-NVFP4", 2) == [("vllm", "dflash2"), ("vllm", "none")]
        assert ("vllm", "mtp") in rungs("RedHatAI/GLM-5.3-Flash-NVFP4", 2)

    @pytest.mark.parametrize(
        ("model", "sparks"),
        [
            ("nvidia/DeepSeek-V4-Flash-NVFP4", 2),
            ("lukealonso/MiMo-V2.5-NVFP4", 2),
            ("poolside/Laguna-S-2.1-NVFP4", 1),
        ],
    )
    def test_an_engine_without_the_architecture_is_no_rung(self, rungs, model, sparks):
        """trtllm-older-than-architecture."""
        assert "trtllm" not in {engine for engine, _ in rungs(model, sparks)}

    def test_an_engine_without_attention_for_the_gpu_is_no_rung(self, sparkfleet):
        """vllm-dsa-no-backend: vLLM 0.20.0 was the choice, as the only image that no list of formats excludes."""
        argv = ("plan", "QuantTrio/GLM-5.2-Int4-Int8Mix", "--sparks", "4", "--offline", "--json")
        (group,) = json.loads(sparkfleet(*argv)[1])["deployments"][0]["plan"]["groups"]
        versions = {rung["candidate"]["engine_version"] for rung in group["ladder"]}
        assert "0.20.0" not in versions
        engines = [rung["candidate"]["engine"] for rung in group["ladder"]]
        drafts = next(rung for rung in group["ladder"] if rung["candidate"]["engine"] == "vllm")
        assert engines == sorted(engines), "sglang first"
        assert drafts["order"].endswith(": vllm-dsa-sm120-kernel counts against it"), "its releases garble"

    def test_a_build_whose_version_is_known_is_not_called_unknown(self, sparkfleet):
        """b12x-aug15-regression is about one build of another image."""
        _, out, _ = sparkfleet("plan", "deepseek-ai/DeepSeek-V4-Flash", "--sparks", "2", "--offline")
        assert "b12x-aug15-regression" not in out

    def test_inkling_runs_on_sglang_with_the_kernels_of_its_recipe(self, sparkfleet, rungs):
        """inkling-vllm-attention, inkling-sglang-marlin, inkling-dspark-page, trtllm-inkling."""
        model = "thinkingmachines/Inkling-Small-NVFP4"
        found = rungs(model, 2)
        assert (found[0], {engine for engine, _ in found}) == (("sglang", "dspark"), {"sglang"})
        _, out, _ = sparkfleet("apply", "--dry-run", model, "--sparks", "2", "--offline")
        assert "--moe-runner-backend=marlin" in out
        assert "--page-size=1" in out
        assert "--tool-call-parser inkling" in out

    def test_dspark_of_deepseek_is_tried_on_both_engines(self, sparkfleet, rungs):
        assert {("vllm", "dspark"), ("sglang", "dspark")} <= set(
            rungs("deepseek-ai/DeepSeek-V4-Flash-0731", 2)
        )
        vision = rungs("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", 2)
        assert {engine for engine, _ in vision} == {"vllm"}  # sglang-v4f-vision

    def test_a_revision_names_the_bits_of_exl3(self, sparkfleet, rungs):
        """The best published configuration of GLM-5.3-Flash on two Sparks, by the name that its maker gives it."""
        assert rungs("turboderp/GLM-5.3-Flash-exl3@4.05bpw", 2)[0] == ("vllm", "dflash2")
        _, _, err = sparkfleet("plan", "turboderp/GLM-5.3-Flash-exl3", "--sparks", "2", "--offline")
        assert "`turboderp/GLM-5.3-Flash-exl3@4.0bpw`" in err

    def test_a_format_is_planned_on_the_release_that_was_seen_with_it(self, sparkfleet):
        """ngc-vllm-26.07: six formats of Qwen3.8-27B; vLLM 0.20.0 was seen with BF16 alone."""
        argv = ("plan", "Qwen/Qwen3-32B-AWQ", "--sparks", "1", "--offline", "--json")
        (group,) = json.loads(sparkfleet(*argv)[1])["deployments"][0]["plan"]["groups"]
        assert group["ladder"][0]["candidate"]["image"] == "nvcr.io/nvidia/vllm:26.07-py3"


def test_a_rung_without_an_explanation_is_not_ignored(sparkfleet):
    code, _, err = sparkfleet("plan", "--sparks", "1", "Qwen/Qwen3.6-27B-FP8", "--rung", "3")
    assert code == Exit.ERROR
    assert "--explain --rung 3" in err
