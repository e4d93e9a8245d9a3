"""Commands that documents and messages name: each is parsed by the command line's own parser, and each file exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from sparkfleet.cli.main import app
from sparkfleet.cli.verbs import VERBS

ROOT = Path(__file__).parents[1]
PAGES = (
    *(ROOT / f"{one}.md" for one in ("README", "SECURITY", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
SOURCES = sorted(
    one for one in (ROOT / "sparkfleet").rglob("*") if one.suffix in (".py", ".js", ".html", ".yaml")
)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_/-]*|.*[…{}<>$].*|\.\.\.")
"""A placeholder for other words: NAME, {name}, $NAME, …"""
FILLED = re.compile(r"\{\{.*?\}\}|\$?\{.*?\}")
"""A value that is filled in: of a template of Prometheus, of an f-string, of JavaScript."""
OPTIONAL = re.compile(r"[][]")
"""Marks of what may be left out."""
FILE = re.compile(
    r"(?<![\w@/.~-])((?:sparkfleet|scripts|tests|benchmarks|docs|deployments|observe|grafana)/[\w/.-]*\w)"
)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
MODULE = re.compile(r"(?<![\w@/.~*-])([a-z_]+/[\w/.-]*\.(?:py|ya?ml|csv|json))\b")
"""A file that is named from its top package: `perf/local_measurements.py`."""
PACKAGES = frozenset(one.name for one in (ROOT / "sparkfleet").iterdir() if one.is_dir())
OF_THE_LAB = re.compile(r"`(up|down) [^`]*`")
"""Verbs of `scripts/lab` that sparkfleet has, too."""
ENDS = frozenset({"|", ">", ">>", "<", "&&", "||", ";", "&", ")", "2>"})
"""Words of a shell after which another command or a file comes."""


class Command(NamedTuple):
    """A command of sparkfleet in a text. `whole`: as somebody would type it, with all its operands."""

    words: tuple[str, ...]
    whole: bool


def blocks(text: str) -> list[str]:
    """Code blocks of a page."""
    return [*FENCE.findall(text), *re.findall(r"(?:^    .*\n?)+", text, re.MULTILINE)]


def commands(text: str) -> Iterator[Command]:
    """Those of the code blocks and the code spans of a page."""
    for block in blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            if (found := re.match(r"\s*(?:\$ )?(sparkfleet .*)", line)) is not None:
                yield Command(words_of(found[1])[1:], whole=True)
    yield from spans(FENCE.sub("", text))


def spans(text: str) -> Iterator[Command]:
    """Those of the code spans: `sparkfleet plan --all`, or `plan --all`."""
    for _, span in CODE.findall(text):
        words = words_of(" ".join(span.split()))
        is_named = words[:1] == ("sparkfleet",)
        if is_named or (words and words[0] in VERBS and any(word.startswith("--") for word in words)):
            yield Command(words[is_named:], whole=False)


def words_of(line: str) -> tuple[str, ...]:
    """Words of a command up to a pipe, a redirection or a comment."""
    reader = shlex.shlex(OPTIONAL.sub("", FILLED.sub("NAME", line)), posix=True, punctuation_chars="|&;<>)")
    reader.whitespace_split = True
    found: list[str] = []
    try:
        for word in reader:
            if word in ENDS:
                break
            found.append(word)
    except ValueError:  # a quote without its end: it is no command
        return ()
    return tuple(found)


def fault(command: Command) -> str:
    """The complaint of the command line; "" if it takes the command."""
    found = complaint(command.words, whole=command.whole)
    if found and not command.whole and command.words[-1].startswith("--"):
        return complaint((*command.words, "VALUE"), whole=False) and found  # the option itself is meant
    return found


def complaint(given: tuple[str, ...], *, whole: bool) -> str:
    """The same of words as they are."""
    words = [word for word in given if word != "…"]
    verb: Any = typer.main.get_command(app)
    context = verb.make_context("sparkfleet", [], resilient_parsing=True)
    while hasattr(verb, "get_command") and words and not words[0].startswith("-"):
        if PLACEHOLDER.fullmatch(words[0]):
            return ""
        name = words.pop(0)
        if (inner := verb.get_command(context, name)) is None:
            return f"there is no {name!r}"
        verb, context = inner, inner.make_context(name, [], resilient_parsing=True, parent=context)
    context.resilient_parsing = False  # of the words: their faults are raised
    try:
        values, rest, _ = verb.make_parser(context).parse_args(words)
    except Exception as error:
        return str(getattr(error, "message", error))
    if rest and not hasattr(verb, "get_command"):
        return f"{rest} is too much"
    if not whole or "help" in values:
        return ""
    lacking = [
        one.name
        for one in verb.params
        if one.required and one.param_type_name == "argument" and values.get(one.name) in (None, (), [])
    ]
    return f"it needs {lacking}" if lacking else ""


@pytest.mark.parametrize(
    "line",
    [
        "status --no-such",
        "no-such",
        "keys no-such",
        "plan a.yaml --nearest-verb",
        "status a b",
        "logs",
        "ask --model",
    ],
)
def test_a_wrong_command_is_found(line):
    (found,) = commands(f"```console\n$ sparkfleet {line} | head   # a comment\n```\n")
    assert fault(found), "in a block"
    if line != "logs":
        (found,) = spans(f"See `sparkfleet {line}`.")
        assert fault(found) or line == "ask --model", "in a sentence"


def test_a_right_command_is_found_and_taken():
    page = """
    sudo scripts/lab up
    sparkfleet plan -f x.yaml [--json] --sparks N    # and so on; `x`

`plan --all`, `sparkfleet VERB --help`, `sparkfleet logs {name} --tail 5 > log`, `doctor --for`, `vllm --no-such`.
"""
    found = [*commands(page)]
    assert [one.words[0] for one in found] == ["plan", "plan", "VERB", "logs", "doctor"]
    assert [one.whole for one in found] == [True, False, False, False, False]
    assert [*map(fault, found)] == [""] * 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_files_of_a_page_are_real(page):
    text = page.read_text()
    if page.name == "lab.md":
        text = OF_THE_LAB.sub("", text)
    assert [(" ".join(one.words), why) for one in commands(text) if (why := fault(one))] == []
    code = "\n".join((*blocks(text), *(span for _, span in CODE.findall(FENCE.sub("", text)))))
    assert [path for path in FILE.findall(code) if not (ROOT / path).exists()] == []
    modules = [path for path in MODULE.findall(code) if path.split("/")[0] in PACKAGES]
    assert [path for path in modules if not (ROOT / "sparkfleet" / path).exists()] == []


def test_modules_of_structures_are_there():
    """They are named from their package, or from the one that the sentence is about."""
    known = [
        one.as_posix() for top in ("sparkfleet", "scripts", "tests") for one in (ROOT / top).rglob("*.py")
    ]
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "structures.md").read_text())
    assert len(named) > 20
    assert [one for one in named if not any(path.endswith(f"/{one}") for path in known)] == []


def test_classes_of_structures_are_there():
    """The nouns of a request and of a deployment, from room to room."""
    known = {name for one in (ROOT / "sparkfleet").rglob("*.py") for name in CLASS.findall(one.read_text())}
    named = re.findall(
        r"`([A-Z][a-z]+[A-Z]\w+|[A-Z][a-z]{3,})`", (ROOT / "docs" / "structures.md").read_text()
    )
    assert {"Deployment", "Candidate", "GroupPlan", "GroupLaunch", "RankCommand"} <= set(named)
    assert [one for one in named if one not in known] == []


def test_commands_of_messages_are_real():
    found = [
        (source.name, " ".join(one.words), why)
        for source in SOURCES
        for one in spans(source.read_text())
        if (why := fault(one))
    ]
    assert found == []
