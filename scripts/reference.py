"""Writes docs/reference/: every verb with its options, every field of the two files; and docs/llms.txt, the list of pages.

python scripts/reference.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from sparkfleet.cli import main as command_line
from sparkfleet.specs.schema import schemas

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = "<!-- written by scripts/reference.py -->\n"
SITE = "mkdocs.yml"
FILES = {
    "inventory": (
        "inventory.yaml",
        "`sparkfleet init` writes this file, and keeps the fields that you add. `docs/examples/` of a clone has one for one"
        " Spark, for two and for eight.",
    ),
    "deployment": (
        "A deployment's file",
        "`name` and `model` are enough: `sparkfleet plan FILE` shows what is chosen for the rest. `deployments/` of a clone"
        " has more.\n\n"
        "    name: assistant\n"
        "    model: Qwen/Qwen3.6-27B-FP8\n"
        "    context: 65536",
    ),
}
"""Title of the page of each file, and how it begins."""
FIRST = ("name", "model", "variants", "objective")
"""Fields of a deployment that come before those which it shares with its variants."""


def pages() -> Iterator[tuple[Path, str]]:
    """Each file, and its content."""
    reference = DOCS / "reference"
    made = {reference / "verbs.md": "\n".join(_verbs())}
    for name, (title, beginning) in FILES.items():
        made[reference / f"{name}.md"] = "\n".join(
            _fields(json.loads(schemas()[f"{name}.schema.json"]), title, beginning)
        )
    yield from made.items()
    yield DOCS / "llms.txt", "\n".join(_list_of_pages(made))


def _verbs() -> Iterator[str]:
    root: Any = typer.main.get_command(command_line.app)
    yield "# Verbs\n"
    yield WRITTEN
    yield "`sparkfleet VERB --help` and `sparkfleet help VERB` print the same. Verbs that read take `--json`; each"
    yield "document has a `version`."
    yield "An error is a document there, too: `error` with `what`, `means` and `do`, and `exit_code`."
    yield "`SPARKFLEET_INVENTORY` is the inventory of a verb without `--inventory`, and `SPARKFLEET_API_KEY` the key of"
    yield "`ask` without `--key`. What is in brackets may be left out; … means several.\n"
    yield "| exit code | meaning |\n|---|---|"
    for part in command_line.EPILOG.partition(": ")[2].split(" · "):
        code, _, meaning = part.partition(" ")
        yield f"| {code} | {meaning} |"
    yield "\nA head that was never reached is 4, whichever node failed first; `doctor` and `bundle` go on without it.\n"
    context = root.make_context("sparkfleet", [], resilient_parsing=True)
    for name in sorted(root.list_commands(context)):
        yield from _verb(root.get_command(context, name), f"sparkfleet {name}", context, "##")


def _verb(command: Any, name: str, above: Any, level: str) -> Iterator[str]:
    if command.hidden:
        return
    context = command.make_context(name.rpartition(" ")[2], [], parent=above, resilient_parsing=True)
    yield f"{level} {name}\n"
    yield f"{_cell(command.help or '')}\n"
    if hasattr(command, "list_commands"):
        for inner in command.list_commands(context):
            yield from _verb(command.get_command(context, inner), f"{name} {inner}", context, f"{level}#")
        return
    if command.epilog:
        yield f"{_cell(command.epilog)}\n"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = " ".join(map(_operand, arguments))
    yield f"    {name} {words}".rstrip() + "\n"
    if arguments:
        yield "| argument | meaning |\n|---|---|"
        for one in arguments:
            yield f"| `{_cell(_operand(one))}` | {_cell(_meaning(one))} |"
        yield ""
    if options:
        yield "| option | meaning |\n|---|---|"
        for one in options:
            names = ", ".join(f"`{option}`" for option in (*one.opts, *one.secondary_opts))
            yield f"| {names} | {_cell(_meaning(one))} |"
        yield ""


def _operand(argument: Any) -> str:
    """`NAME`, `[NAME]` if it may be left out, `[NAME]…` if there may be several."""
    word = argument.metavar or argument.name.upper()
    return f"{word if argument.required else f'[{word}]'}{'…' if argument.nargs == -1 else ''}"


def _meaning(parameter: Any) -> str:
    """The help of an argument or option, with its default, its range and its environment variable as `--help` has them."""
    parts = [parameter.help or ""]
    shown = parameter.show_default
    if isinstance(shown, str):
        parts.append(f"Default: {shown}.")
    elif shown and parameter.default not in (None, "", (), []) and not isinstance(parameter.default, bool):
        parts.append(f"Default: {getattr(parameter.default, 'value', parameter.default)}.")
    elif shown and isinstance(parameter.default, bool) and parameter.secondary_opts:
        chosen = (parameter.opts if parameter.default else parameter.secondary_opts)[0]
        parts.append(f"Default: `{chosen}`.")
    # By Typer's release.
    limits = parameter if hasattr(parameter, "min") else getattr(parameter, "type", None)
    low, high = (getattr(limits, bound, None) for bound in ("min", "max"))
    if low is not None or high is not None:
        parts.append(f"From {low} to {high}." if high is not None else f"At least {low}.")
    if parameter.envvar:
        parts.append(f"Environment variable: `{parameter.envvar}`.")
    return " ".join(filter(None, parts))


def _fields(schema: Mapping[str, Any], title: str, beginning: str) -> Iterator[str]:
    yield f"# {title}\n"
    yield WRITTEN
    yield f"{_cell(str(schema.get('description', '')))}\n"
    yield f"{beginning}\n"
    yield from _table(schema, FIRST)
    for name, inner in sorted(schema.get("$defs", {}).items()):
        if "properties" in inner:
            yield f"## {name}\n"
            yield f"{_cell(str(inner.get('description', '')))}\n"
            yield from _table(inner)


def _table(schema: Mapping[str, Any], first: Sequence[str] = ()) -> Iterator[str]:
    yield "| field | value | default | meaning |\n|---|---|---|---|"
    required = schema.get("required", ())
    fields = schema.get("properties", {})
    for name in sorted(fields, key=lambda one: first.index(one) if one in first else len(first)):
        field = fields[name]
        default = (
            "required"
            if name in required
            else f"`{json.dumps(field['default'])}`"
            if "default" in field
            else ""
        )
        yield f"| `{name}` | {_kind(field)} | {_cell(default)} | {_cell(str(field.get('description', '')))} |"
    yield ""


def _kind(field: Mapping[str, Any]) -> str:
    """The values of a field in words."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if values := field.get("enum", [field["const"]] if "const" in field else []):
        return ", ".join(f"`{one}`" for one in values)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(one) for one in field["anyOf"] if one.get("type") != "null"))
    inner = field.get("items" if field.get("type") == "array" else "additionalProperties")
    if isinstance(inner, dict):
        return f"{'list of' if field['type'] == 'array' else 'by name:'} {_kind(inner)}"
    return str(field.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _list_of_pages(made: Mapping[Path, str]) -> Iterator[str]:
    site = yaml.safe_load((ROOT / SITE).read_text())
    yield f"# {site['site_name']}\n"
    yield f"> {site['site_description']}\n"
    for section in site["nav"]:
        for title, inner in section.items():
            yield f"## {title}\n"
            for page in [{title: inner}] if isinstance(inner, str) else inner:
                for name, file in page.items():
                    yield f"- [{name}]({file}): {_first_line(made.get(DOCS / file) or (DOCS / file).read_text())}"
            yield ""


def _first_line(page: str) -> str:
    """The first sentence below the title."""
    paragraphs = (
        one for one in page.split("\n\n") if one.strip() and not one.lstrip().startswith(("#", "<!--", "|"))
    )
    return _cell(next(paragraphs, "")).partition(". ")[0].rstrip(".")


def main() -> int:
    """Write the pages, or with `--check` name those that are stale."""
    stale = [(file, text) for file, text in pages() if not file.is_file() or file.read_text() != text + "\n"]
    for file, text in stale:
        if "--check" in sys.argv[1:]:
            print(f"{file.relative_to(ROOT)} is stale", file=sys.stderr)
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
            print(f"wrote {file.relative_to(ROOT)}")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())
