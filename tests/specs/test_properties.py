"""A file with any content loads, or raises an error with the place of the fault. Nothing else ever happens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkfleet.errors import SpecError
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.document import dump, read
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.load import parse_deployment, parse_inventory, to_yaml
from sparkfleet.specs.schema import schemas

EXAMPLES = Path(__file__).parents[0] / "examples"
DEPLOYMENTS = [path.read_text() for path in sorted(EXAMPLES.glob("deployment-*.yaml"))]
INVENTORIES = [path.read_text() for path in sorted(EXAMPLES.glob("inventory-*.yaml"))]
DEPLOYMENT_SCHEMA = Draft202012Validator(json.loads(schemas()["deployment.schema.json"]))
INVENTORY_SCHEMA = Draft202012Validator(json.loads(schemas()["inventory.schema.json"]))
SAID = re.compile(r"f\.yaml(:(?P<line>[1-9][0-9]*))?: .*\S")


def check(
    text: str, parse: Callable[[str, str], Deployment | Inventory], schema: Draft202012Validator
) -> None:
    try:
        spec = parse(text, "f.yaml")
    except SpecError as error:
        check_error(str(error), text)
    else:
        assert parse(to_yaml(spec), "f.yaml") == spec
        assert type(spec).model_validate_json(spec.model_dump_json()) == spec
        schema.validate(json.loads(json.dumps(read(text).value)))


def check_error(said: str, text: str) -> None:
    last = len(re.findall(r"\r\n|[\n\r\x85\u2028\u2029]", text)) + 1
    for line in said.splitlines() or [""]:
        found = SAID.fullmatch(line)
        assert found, line
        assert line.isprintable()
        assert "Input should" not in line, "pydantic's own words"
        if found["line"]:
            assert 1 <= int(found["line"]) <= last
        else:
            assert "is empty" in line or "more problems" in line


def check_both(text: str) -> None:
    check(text, parse_deployment, DEPLOYMENT_SCHEMA)
    check(text, parse_inventory, INVENTORY_SCHEMA)


@given(st.text())
def test_any_text(text: str) -> None:
    check_both(text)


SOUP = [
    *"ab1:- \n\t[]{},&*!|>'\"%@#?~<\\", "---", "...", "\\U", "\\x", "%YAML", "&a", "*a", "!!", "\u2028", "\x85", "\ufeff",
]  # fmt: skip


@given(st.lists(st.sampled_from(SOUP)))
def test_any_soup_of_yaml(parts: list[str]) -> None:
    check_both("".join(parts))


WORDS = [
    *Deployment.model_fields, *Inventory.model_fields, "address", "user", "host_key", "engines", "vllm", "python",
    "method", "tokens", "tp", "netdev", "rdma", "rails", "switch", "jump", "local", "auto", "none", "mtp", "custom",
    "a/b", "builtin:tiny", "/a", "10.0.0.1", "10.0.0.1/24", "[key]", "24 GiB", "spark1", "a", "env", "no", "1e5",
]  # fmt: skip
WORD = st.sampled_from(WORDS)
ANY_TEXT = WORD | st.text(max_size=5)
SCALAR = ANY_TEXT | st.none() | st.booleans() | st.integers() | st.floats()
KEY = WORD | st.text(max_size=3) | st.integers() | st.none() | st.booleans()
ANYTHING = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=6), max_leaves=12
)


@given(st.dictionaries(KEY, ANYTHING, max_size=8))
def test_any_structure(structure: dict[Any, Any]) -> None:
    check_both(yaml.safe_dump(structure, allow_unicode=True))


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> str:
    """An example with one to three values replaced, removed, renamed or added."""
    value = yaml.safe_load(draw(st.sampled_from(texts)))
    for _ in range(draw(st.integers(1, 3))):
        value = _mutate(draw, value)
    return yaml.safe_dump(value, allow_unicode=True)


def _mutate(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value:
        return draw(ANYTHING)
    step = draw(st.sampled_from([*value] if isinstance(value, dict) else range(len(value))))
    match draw(st.sampled_from(["go on", "go on", "go on", "replace", "remove", "rename", "add"])):
        case "go on":
            value[step] = _mutate(draw, value[step])
        case "replace":
            value[step] = draw(ANYTHING)
        case "remove":
            del value[step]
        case "rename" if isinstance(value, dict):
            value[f"{step}"[:-1]] = value.pop(step)
        case _ if isinstance(value, dict):
            value[draw(KEY)] = draw(ANYTHING)
        case _:
            value.append(draw(st.sampled_from(value)))
    return value


@given(mutated(DEPLOYMENTS))
def test_a_deployment_that_is_almost_right(text: str) -> None:
    check(text, parse_deployment, DEPLOYMENT_SCHEMA)


@given(mutated(INVENTORIES))
def test_an_inventory_that_is_almost_right(text: str) -> None:
    check(text, parse_inventory, INVENTORY_SCHEMA)


@given(
    st.sampled_from(DEPLOYMENTS + INVENTORIES), st.integers(0), st.integers(0, 9), st.text(max_size=3) | WORD
)
def test_a_slip_of_the_keyboard(text: str, at: int, removed: int, typed: str) -> None:
    at %= len(text)
    check_both(text[:at] + typed + text[at + removed :])


def text_like(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.from_regex(schema["pattern"]).filter(
        lambda text: len(text) <= schema["maxLength"] and "\n" not in text
    )


def value_like(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that one field of the JSON Schema allows."""
    if "anyOf" in schema:
        return st.one_of([value_like(choice) for choice in schema["anyOf"] if "$ref" not in choice])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            return text_like(schema)
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.integers() | st.floats()
        case "array":
            items = st.nothing() if "$ref" in schema["items"] else value_like(schema["items"])
            return st.lists(
                items, min_size=schema.get("minItems", 0), max_size=3, unique="uniqueItems" in schema
            )
        case "boolean":
            return st.booleans()
        case "object":
            return st.dictionaries(
                text_like(schema["propertyNames"]), value_like(schema["additionalProperties"]), max_size=2
            )
    return st.none()


FIELDS = {name: value_like(field) for name, field in DEPLOYMENT_SCHEMA.schema["properties"].items()}
REQUIRED = {"name": FIELDS["name"], "model": FIELDS["model"].filter(bool)}
TIED = {
    "command",
    "port",
    "health",
    "stage_model",
    "runtime",
    "variants",
    "engine",
    "trust_remote_code",
    "external",
    "idle",
}
OPTIONAL = {name: FIELDS[name] for name in FIELDS.keys() - REQUIRED - TIED}
# JSON Schema cannot refuse an item that no flag is before, and the loader does.
OPTIONAL["engine_args"] = OPTIONAL["engine_args"].map(lambda items: [f"--flag={item}" for item in items])


def is_consistent(fields: dict[str, Any]) -> bool:
    """False for what JSON Schema cannot refuse and `Deployment` does: a name that is among its own aliases, or a standby of
    what is on demand."""
    kept = fields.get("on_demand") and fields.get("standby")
    return fields["name"] not in fields.get("aliases", ()) and not kept


@given(st.fixed_dictionaries(REQUIRED, optional=OPTIONAL).filter(is_consistent))
def test_what_the_schema_allows_loads_and_travels(fields: dict[str, Any]) -> None:
    spec = parse_deployment(dump(fields))
    assert parse_deployment(to_yaml(spec)) == spec
    assert Deployment.model_validate_json(spec.model_dump_json()) == spec
    assert spec.resolved()[0].model == fields["model"]
