from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.checkpoints.io.licenses import (
    License,
    license_class,
    license_in_card,
    license_in_text,
    read_license,
)


@pytest.mark.parametrize(
    ("front", "name", "kind"),
    [
        ("license: apache-2.0", "apache-2.0", "open-source"),
        ('license: "MIT"', "mit", "open-source"),
        ("license: 'bsd-3-clause'  ", "bsd-3-clause", "open-source"),
        ("license:\n- apache-2.0\ntags:\n- x", "apache-2.0", "open-source"),
        ("license: [mit]", "mit", "open-source"),
        ("license: other\nlicense_name: nvidia-open-model-license", "nvidia-open-model-license", "other"),
        ("license_name: modified-mit\nlicense: other", "modified-mit", "other"),
        ("license: other", "other", "other"),
        ("license: llama3.1", "llama3.1", "other"),
        ("license: gemma", "gemma", "other"),
        ("license: cc-by-nc-4.0", "cc-by-nc-4.0", "other"),
        ("license: unknown", "unknown", "unknown"),
        ("license:", "", "unknown"),
        ("license: a name with spaces", "", "unknown"),
        ("license: {mit: true}", "", "unknown"),
        ("language: en", "", "unknown"),
        ("not_license: mit", "", "unknown"),
        ("datasets:\n  license: mit", "", "unknown"),
    ],
)
def test_the_front_matter_of_a_model_card(front: str, name: str, kind: str) -> None:
    assert license_in_card(f"---\n{front}\n---\n# Model\nlicense: mit\n") == name
    assert license_class(name) == kind


@pytest.mark.parametrize(
    "card", ["", "# Model\nlicense: mit\n", "---\nlicense: mit\n", "text\n---\nlicense: mit\n---\n"]
)
def test_a_card_without_front_matter_has_no_licence(card: str) -> None:
    assert license_in_card(card) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "                                 Apache License\n                           Version 2.0, January 2004\n",
            "apache-2.0",
        ),
        ("MIT License\n\nCopyright (c) 2025 DeepSeek\n", "mit"),
        ("Modified MIT License\n\nCopyright (c) 2025 Moonshot AI\n", "modified-mit"),
        ("NVIDIA Open Model License Agreement\nLast Modified: October 24, 2025", "nvidia-open-model-license"),
        ("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\nLlama 3.1 Version Release Date", "llama3.1"),
        ("Gemma Terms of Use\n\nLast modified", "gemma"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\n Version 3, 19 November 2007", "agpl-3.0"),
        ("GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007", "gpl-3.0"),
        ("All rights reserved.", ""),
        ("x" * 5000 + "MIT License", ""),
        ("", ""),
    ],
)
def test_the_first_words_of_a_licence(text: str, name: str) -> None:
    assert license_in_text(text) == name


def test_the_card_counts_before_the_licence_file(tmp_path: Path) -> None:
    assert read_license(tmp_path) == License()
    (tmp_path / "LICENSE").write_text("MIT License\n")
    assert read_license(tmp_path) == License(id="mit", kind="open-source", source="LICENSE")
    (tmp_path / "README.md").write_text("# No front matter\n")
    assert read_license(tmp_path).id == "mit"
    (tmp_path / "README.md").write_text("---\nlicense: gemma\n---\n")
    assert read_license(tmp_path) == License(id="gemma", kind="other", source="README.md")


def test_a_text_that_is_not_recognised_is_unknown_and_not_open(tmp_path: Path) -> None:
    (tmp_path / "LICENSE.md").write_text("Our own terms.\n")
    assert read_license(tmp_path) == License(id="", kind="unknown", source="LICENSE.md")


def test_only_the_start_of_a_large_file_is_read(tmp_path: Path) -> None:
    with (tmp_path / "README.md").open("wb") as file:
        file.write(b"---\nlicense: mit\n---\n")
        file.truncate(8 << 30)
    assert read_license(tmp_path).id == "mit"


@given(card=st.text() | st.text().map(lambda text: f"---\nlicense: {text}\n---\n"))
def test_any_text_gives_a_plain_name_or_none(card: str) -> None:
    assert license_in_card(card).isascii()
    assert license_in_text(card).isascii()
