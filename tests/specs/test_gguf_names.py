"""Tags, shards and towers by the names that quantisers give to files."""

from __future__ import annotations

import pytest

from sparkfleet.specs.gguf_names import models_of, siblings, tag_of, tower_of


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("UD-Q4_K_XL/GLM-4.5-Air-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "MXFP4"),
        ("Qwen_Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("Model.i1-IQ2_XXS.gguf", "IQ2_XXS"),
        ("Model.Q8_0.gguf", "Q8_0"),
        ("ggml-model-q4_0.gguf", "Q4_0"),
        ("a-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("a-BF16.gguf", "BF16"),
        ("a-fp16.gguf", "FP16"),
        ("a-TQ1_0.gguf", "TQ1_0"),
        ("BF16/model-00001-of-00009.gguf", "BF16"),
        ("Qwen3-4B-Instruct.gguf", "INSTRUCT"),
        ("model.gguf", "GGUF"),
    ],
)
def test_the_tag_is_the_quantisation(name, tag):
    assert tag_of(name) == tag


@pytest.mark.parametrize(
    "name",
    [
        "mmproj-F16.gguf",
        "a.mmproj-Q8_0.gguf",
        "imatrix_unsloth.gguf",
        "a.imatrix.gguf",
        "mtp-a-Q8_0.gguf",
        "eagle3-a.gguf",
        ".hidden.gguf",
        "a.safetensors",
    ],
)
def test_what_is_no_model(name):
    own = "a-Q8_0.gguf"
    assert models_of([name, own]) == models_of([own])


def test_drafts_are_models_of_a_repository_that_has_nothing_else():
    drafts = ["dflash-a-Q8_0.gguf", "a/dspark-a-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix.gguf"]
    assert [one.tag for one in models_of(drafts)] == ["Q4_K_M", "Q8_0"]
    assert [one.files for one in models_of([*drafts, "a-Q8_0.gguf"])] == [("a-Q8_0.gguf",)]


def test_shards_are_one_model_and_missing_ones_are_counted():
    names = ["b-Q8_0-00002-of-00003.gguf", "a-Q4_K_M.gguf", "b-Q8_0-00001-of-00003.gguf", "mmproj-F16.gguf"]
    four, eight = models_of(names)
    assert (four.tag, four.files, four.missing) == ("Q4_K_M", ("a-Q4_K_M.gguf",), 0)
    assert (eight.tag, eight.missing) == ("Q8_0", 1)
    assert eight.files == ("b-Q8_0-00001-of-00003.gguf", "b-Q8_0-00002-of-00003.gguf")
    assert siblings("b-Q8_0-00002-of-00003.gguf", names) == eight
    assert siblings("a-Q4_K_M.gguf", names) == four


@pytest.mark.parametrize(
    ("names", "model", "tower"),
    [
        (("mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"), "a.gguf", "mmproj-F16.gguf"),
        (("mmproj-Q8_0.gguf", "mmproj-F32.gguf"), "Q4/a.gguf", "mmproj-F32.gguf"),
        (("mmproj-F16.gguf", "Q4/mmproj-Q8_0.gguf"), "Q4/a.gguf", "Q4/mmproj-Q8_0.gguf"),
        (("Q8/mmproj-F16.gguf",), "Q4/a.gguf", ""),
        (("Q/mmproj-F16.gguf",), "Q4/a.gguf", ""),
    ],
)
def test_the_tower_is_beside_the_model_or_above(names, model, tower):
    assert tower_of(names, model) == tower
