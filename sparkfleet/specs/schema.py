"""`python -m sparkfleet.specs.schema [--check]`: writes the JSON Schemas with which editors complete spec files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.field_descriptions import field_descriptions
from sparkfleet.specs.inventory import Inventory

DIRECTORY = Path(__file__).parents[2] / "docs" / "schema"
"""Directory of the schemas in the source tree."""

_EITHER = {
    "oneOf": [
        {"required": ["model"], "properties": {"model": {"type": "string"}}},
        {"required": ["variants"], "properties": {"variants": {"minItems": 1}}},
    ]
}
"""`model` or `variants`, but not both: a check between fields, which pydantic does not put into a schema."""


class _Described(GenerateJsonSchema):
    """Schemas with the description of every field, and without its title, which would only repeat its name."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in field_descriptions(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name]["description"] = text
        return made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas() -> dict[str, str]:
    """File name → JSON Schema (draft 2020-12), as text."""
    return {
        "inventory.schema.json": _text(Inventory.model_json_schema(schema_generator=_Described)),
        "deployment.schema.json": _text(Deployment.model_json_schema(schema_generator=_Described) | _EITHER),
    }


def stale(directory: Path) -> tuple[str, ...]:
    """Names of the schema files in `directory` that are missing or differ from `schemas`."""
    return tuple(name for name, text in schemas().items() if _content(directory / name) != text)


def main(argv: list[str] | None = None) -> int:
    """Write the schemas, or with `--check` list those that are not current and exit with 1."""
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.specs.schema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("directory", type=Path, nargs="?", default=DIRECTORY, help="default: docs/schema")
    options = parser.parse_args(argv)
    names = stale(options.directory)
    if options.check:
        for name in names:
            print(
                f"{options.directory / name} is not current. Run: python -m sparkfleet.specs.schema",
                file=sys.stderr,
            )
        return 1 if names else 0
    options.directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (options.directory / name).write_text(schemas()[name], encoding="utf-8")
        print(f"wrote {options.directory / name}")
    return 0


def _text(schema: dict[str, Any]) -> str:
    return (
        json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **schema}, indent=2, ensure_ascii=False)
        + "\n"
    )


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
