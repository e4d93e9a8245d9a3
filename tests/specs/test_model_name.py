"""Parts of models' names."""

from __future__ import annotations

import pytest

from sparkfleet.specs.model_name import ModelName, base_name, is_hub_tag, model_name


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("org/name", ("org/name", "", "")),
        ("org/name@v1/x", ("org/name", "v1/x", "")),
        ("org/name:q4_k_m", ("org/name", "", "Q4_K_M")),
        ("org/name@main:UD-Q4_K_XL", ("org/name", "main", "UD-Q4_K_XL")),
        ("/models/a@b", ("/models/a@b", "", "")),
        ("builtin:tiny", ("builtin:tiny", "", "")),
    ],
)
def test_parts(model, parts):
    assert model_name(model) == parts
    assert base_name(model) == parts[0]


def test_caches_name_a_model_with_its_tag_alone():
    assert ModelName("org/name", "main", "Q8_0").tagged == "org/name:Q8_0"
    assert ModelName("org/name", "main").tagged == "org/name"


@pytest.mark.parametrize(
    ("text", "is_one"), [("Q4_K_M", True), ("UD-Q4_K_XL", True), ("", False), ("../x", False), ("a b", False)]
)
def test_form_of_a_tag(text, is_one):
    assert is_hub_tag(text) is is_one
