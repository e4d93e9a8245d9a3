import pytest

from sparkfleet.knowledge.models.gguf_formats import format_of_tag, gguf_name, stem_of


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("ggml-org/gpt-oss-120b-GGUF:MXFP4", ("ggml-org/gpt-oss-120b-GGUF", "", "MXFP4")),
        ("a/b-GGUF@0f1e2d3:UD-Q4_K_XL", ("a/b-GGUF", "0f1e2d3", "UD-Q4_K_XL")),
        ("a/b-GGUF@main", ("a/b-GGUF", "main", "")),
        ("a/b:Q4_K_M", ("a/b", "", "Q4_K_M")),
        ("a/b", None),
        ("Qwen/Qwen3.6-27B-FP8@abc", None),
        ("/models/x-GGUF", None),
        ("builtin:tiny", None),
    ],
)
def test_the_parts_of_a_name(model, parts):
    found = gguf_name(model)
    assert (found if found is None or parts is None else tuple(found)) == parts


@pytest.mark.parametrize(
    ("tag", "stored"),
    [
        ("Q4_K_M", "q4_k"), ("q4_k_m", "q4_k"), ("UD-Q4_K_XL", "q4_k"), ("IQ4_XS", "q4_k"), ("Q4_0", "q4_0"),
        ("IQ4_NL", "q4_0"), ("Q8_0", "q8_0"), ("UD-Q5_K_XL", "q5_k"), ("Q6_K", "q6_k"), ("UD-IQ3_XXS", "q3_k"),
        ("IQ2_XXS", "q2_k"), ("UD-IQ1_M", "iq1"), ("MXFP4", "gguf-mxfp4"), ("BF16", "bf16"), ("F16", "bf16"),
        ("latest", None),
    ],
)  # fmt: skip
def test_the_format_of_a_tag(tag, stored):
    assert format_of_tag(tag) == stored


@pytest.mark.parametrize(
    ("repository", "stem"),
    [
        ("ggml-org/gpt-oss-120b-GGUF", "ggml-org/gpt-oss-120b"),
        ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", "ggml-org/Qwen2.5-Coder-7B"),
        ("unsloth/Qwen3.6-35B-A3B-MTP-GGUF", "unsloth/Qwen3.6-35B-A3B-MTP"),
    ],
)
def test_the_model_that_a_repository_is_named_for(repository, stem):
    assert stem_of(repository) == stem
