"""Speculative methods: whatever knowledge knows, a deployment can ask for, of an engine that has it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import get_args

import pytest

from sparkfleet.accuracy import aliases
from sparkfleet.errors import SpecError
from sparkfleet.group.canary import ACCEPTED_FLOOR
from sparkfleet.knowledge.data_file import packaged
from sparkfleet.knowledge.engines.images import IMAGES
from sparkfleet.knowledge.engines.method_support import (
    METHOD_SUPPORT,
    lacks,
    names_of,
    support_of,
    takes_schedule,
)
from sparkfleet.knowledge.models.speculators import SPECULATORS
from sparkfleet.knowledge.rules.rules import load_rules
from sparkfleet.planner.place.drafting import DEFAULT_TOKENS
from sparkfleet.specs.deployment import Deployment, Method

METHODS = set(get_args(Method))
ENGINES = ("vllm", "sglang", "trtllm")


def in_factors() -> set[str]:
    return set(re.findall(r"\bmethod(?:\+[a-z]+)?=([a-z0-9]+)", packaged("published/factors.yaml")))


@cache
def in_measurements() -> set[str]:
    path = files("sparkfleet.knowledge.measurements").joinpath("benchmarks.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    texts = {text for row in rows for text in row.values() if isinstance(text, str)}
    return {one[0] for one in map(aliases.method_in, texts) if one is not None}


def in_rules() -> set[str]:
    text = packaged("rules/rules.yaml")
    said = re.findall(r"\bspeculation: (?:\{not: )?(\[[^\]]*\]|[a-z0-9_]+)", text)
    return {word for one in said for word in re.findall(r"[a-z0-9]+", one)} - {"any", "null", "not"}


KNOWN: Mapping[str, Callable[[], set[str]]] = {
    "factors.yaml": in_factors,
    "measurements": in_measurements,
    "rules.yaml": in_rules,
    "accuracy/aliases.py": lambda: {name for _, name in aliases._METHODS},
    "speculators.yaml": lambda: {one.method for one in SPECULATORS.content.speculators},
    "images.yaml": lambda: {method for image in IMAGES.content.images for method in image.methods},
}


@pytest.mark.parametrize("source", KNOWN)
def test_a_deployment_can_have_every_method_of_the_knowledge(source: str) -> None:
    known = KNOWN[source]()
    assert known - {"none"}, "the reader of this test finds nothing in it"
    assert known <= METHODS
    for method in known:
        asked = Deployment.model_validate({"name": "x", "model": "a/b", "speculation": method})
        assert asked.speculation.method == method
        assert method == "none" or any(support_of(engine, method) for engine in ENGINES)


def test_the_readers_find_every_entry() -> None:
    for source in ("factors.yaml", "measurements", "accuracy/aliases.py", "speculators.yaml"):
        assert {"dflash", "dflash2", "dspark", "mtp"} <= KNOWN[source](), source
    assert load_rules()


def test_every_trained_drafter_has_a_floor_below_which_it_is_noise() -> None:
    assert set(ACCEPTED_FLOOR) == METHODS - {"none", "ngram"}


def test_every_method_has_a_depth_and_is_read_in_measurements() -> None:
    assert set(DEFAULT_TOKENS) == METHODS - {"none"}
    assert {method for method in METHODS - {"none"} if aliases.method_in(method) is None} == set()


@pytest.mark.parametrize(
    ("engine", "version", "method", "expected"),
    [
        ("vllm", "0.27.1", "dflash2", True),
        ("vllm", "0.28.0", "dflash2", False),
        ("vllm", "0.28.1rc1.dev345", "dflash2", False),
        ("vllm", "0.24.0", "dspark", True),
        ("vllm", "0.25.2.dev0", "dspark", False),
        ("vllm", "", "dspark", False),
        ("vllm", "0.32.0", "nextn", True),
        ("sglang", "0.5.12 re-tag", "dspark", True),
        ("sglang", "0.5.16", "dspark", False),
        ("sglang", "0.5.18", "dflash2", True),
        ("sglang", "0.5.19", "dflash2", False),
        ("trtllm", "1.3.0rc12", "dspark", True),
        ("trtllm", "1.3.0rc27", "dspark", False),
        ("trtllm", "1.4.0rc1", "dflash2", True),
    ],
)
def test_a_release_has_a_method_or_lacks_it(engine: str, version: str, method: str, expected: bool) -> None:
    assert lacks(engine, version, method) is expected


def test_a_schedule_is_given_only_to_releases_known_to_take_it() -> None:
    assert takes_schedule("vllm", "0.24.0", "mtp")
    assert not takes_schedule("vllm", "0.23.0", "mtp")
    assert not takes_schedule("vllm", "", "mtp"), "a version that is not known"
    assert not takes_schedule("sglang", "0.5.23", "dspark")


def test_one_name_for_two_drafts() -> None:
    for engine in ("vllm", "sglang"):
        assert names_of(engine)["dflash"] == names_of(engine)["dflash2"]


def test_a_schedule_names_methods_of_its_engine() -> None:
    for one in METHOD_SUPPORT.content.schedules:
        assert set(one.methods) <= set(names_of(one.engine))


def test_a_mistake_is_reported_with_its_entry() -> None:
    text = METHOD_SUPPORT.text.replace("method: dspark, name: dspark", "method: spark, name: dspark")
    with pytest.raises(SpecError, match="vllm-dspark: method"):
        METHOD_SUPPORT.read(text)


DRAFT = """
version: 1
speculators:
- id: a-dspark
  targets: ["*Model-A*"]
  method: dspark
  engines: [vllm]
  head: %s
  %s
  sources: [s]
  date: "2026"
"""


@pytest.mark.parametrize(
    ("head", "fields", "complaint"),
    [
        ("checkpoint", "license: mit", "those of a named draft"),
        ("separate", "gb: 1.5", "those of a named draft"),
        ("separate", "tokens: {alone: 2, busy: 4, busy_from: 8}", "busy <= alone"),
    ],
)
def test_licence_and_size_are_those_of_a_draft(head: str, fields: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        SPECULATORS.read(DRAFT % (head, fields))


def test_the_licence_that_forbids_commercial_use_is_known() -> None:
    drafts = {one.draft: one for one in SPECULATORS.content.speculators if one.draft}
    assert drafts["incoai/GLM-5.3-Flash-DFlash2"].license == "cc-by-nc-nd-4.0"
