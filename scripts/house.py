"""Checks of the house that no linter has: packages that can be looked over, unique class names, no test doubles, docstrings
that open with a verb or a noun, plain words in code and documents, and one way of quoting.

Usage: python scripts/house.py. Prints one line per finding; exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sparkfleet"
BESIDE = (ROOT / "tests", ROOT / "scripts", ROOT / "benchmarks")
"""Code of which only the docstrings are checked."""
PLAIN = (ROOT / "scripts", ROOT / "benchmarks", ROOT / "tests" / "support")
"""Code beside the package with plain words, too."""
GENERATED = ("rules.md", "decisions.md")
"""Documents whose words are not checked: one is made of the rules' texts, the other is a record."""

QUESTION = re.compile(r"(What|How|Which|Where|Who|Whom|Whose|Whether|When|Why)\b")
"""A docstring's first line is a verb phrase or a noun phrase."""

POINTING = re.compile(
    r"(Its|Those|They|There|That|So|As|Of|By|For|With|On|In|To|At(?! most| least)|After|Has|Not|Does)\b"
)
"""First words of a function's or a class's docstring that need another line to be understood."""
STANDALONE = ("rails_helper.py",)
"""Programs that machines keep a copy of: with other words in it they have to be installed there again."""

RIDDLES = re.compile(
    r"\b(wants(?!=)|wanted to|told|tells|said|says|whom|heard|hears|believed?|lies|hopes|nowhere|anew|whoever"
    r"|dealt out|not understood|stands? for|stood for|remembered not|what is remembered|to be had|becomes? of|became of)\b",
    re.IGNORECASE,
)
"""Things do not speak, listen or believe; each of the other words has a plainer one."""

DOUBLES = re.compile(r"(Fake|Stub|Mock|Dummy)[A-Z]")
"""Names of classes that only tests use: they are in tests/support. The fake engine is for users, too."""

MOST_MODULES = 22
"""Of one package, its own parts (packages) not counted."""

UNHELD = ("lab", "gateway", "planner")
"""Packages whose messages may have Python's quotes still."""


def public_classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Public classes at the top level of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def aliases(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of the public type aliases at the top level of a module."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()):
                if re.fullmatch(r"[A-Z]+[a-z]\w*", name):
                    yield node.lineno, name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first line of every docstring, those of values included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                match part:
                    case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                        yield part.lineno, text.strip().splitlines()[0]


def riddles(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and word of `RIDDLES` in messages and docstrings: strings with a space in them, without `code` and options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            prose = re.sub(r"`[^`\n]*`|--[\w-]+", lambda code: " " * len(code[0]), node.value)
            for found in RIDDLES.finditer(prose):
                yield node.lineno + prose[: found.start()].count("\n"), found[0]


def riddles_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Line and word of `RIDDLES` in a document, without its code, options and links."""
    code = re.compile(r"```.*?```|`[^`\n]*`|--[\w-]+|^ {4}.*?$|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
    prose = code.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for found in RIDDLES.finditer(prose):
        yield prose[: found.start()].count("\n") + 1, found[0]


def riddles_of_comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of `RIDDLES` in comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for _, word in riddles_of_text(token.string):
                yield token.start[0], word


def representations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and expression of every `{value!r}` in a sentence, but for exceptions: a person sees `quote(value)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and any(
            isinstance(part, ast.Constant) and " " in part.value for part in node.values
        ):
            for part in node.values:
                if isinstance(part, ast.FormattedValue) and part.conversion == ord("r"):
                    text = ast.unparse(part.value)
                    if text != "error":
                        yield part.lineno, text


def questions(name: Path, tree: ast.Module) -> Iterator[str]:
    """Docstrings that open with a question word."""
    for line, first in docstrings(tree):
        if found := QUESTION.match(first):
            yield f"{name}:{line}: a docstring opens with {found[0]!r}: begin with a verb or a noun"


def pointing(name: Path, tree: ast.Module) -> Iterator[str]:
    """Docstrings of functions and classes that open with a word that points at something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            found := POINTING.match(ast.get_docstring(node) or "")
        ):
            yield f"{name}:{node.lineno}: a docstring opens with {found[0]!r}: begin with a verb or a noun"


def findings_beside(root: Path) -> Iterator[str]:
    """Docstrings of tests, scripts and benchmarks that are wrong, as `file:line: message`."""
    for path in sorted(root.rglob("*.py")):
        yield from questions(path.relative_to(root.parent), ast.parse(path.read_text(encoding="utf-8")))


def unclear(name: Path, source: str, tree: ast.Module) -> Iterator[str]:
    """Words of messages, docstrings and comments that have plainer ones."""
    for line, word in (*riddles(tree), *riddles_of_comments(source)):
        yield f"{name}:{line}: {word!r} in a message, a docstring or a comment: use a plainer word"


def unclear_beside(root: Path) -> Iterator[str]:
    """Such words in code beside the package, but for this file, which lists them."""
    for path in sorted(root.rglob("*.py")):
        if path != Path(__file__).resolve():
            source = path.read_text(encoding="utf-8")
            yield from unclear(path.relative_to(root.parent), source, ast.parse(source))


def unclear_documents(root: Path) -> Iterator[str]:
    """Such words in documents."""
    for path in sorted((*root.glob("*.md"), *(root / "docs").rglob("*.md"))):
        if path.name not in GENERATED:
            for line, word in riddles_of_text(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(root)}:{line}: {word!r} in a document: use a plainer word"


def large_packages(root: Path) -> Iterator[str]:
    """Packages with more modules side by side than `MOST_MODULES`."""
    for init in sorted(root.rglob("__init__.py")):
        modules = len(list(init.parent.glob("*.py"))) - 1
        if modules > MOST_MODULES:
            name = init.parent.relative_to(root.parent)
            yield f"{name}: {modules} modules side by side (at most {MOST_MODULES}): put those that belong together into one"


def findings(root: Path) -> Iterator[str]:
    """Everything that is wrong, as `file:line: message`."""
    yield from large_packages(root)
    classes: dict[str, list[str]] = defaultdict(list)
    named: list[tuple[str, str]] = []
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(root.parent)
        tree = ast.parse(source)
        for one in public_classes(tree):
            classes[one.name].append(f"{name}:{one.lineno}")
            if DOUBLES.match(one.name) and name.parts[1:3] != ("engines", "fake"):
                yield f"{name}:{one.lineno}: class {one.name} is a test double: put it into tests/support"
        # Those of asgi.py are the words of the ASGI specification.
        if name.name != "asgi.py":
            named += [(f"{name}:{line}", alias) for line, alias in aliases(tree)]
        yield from questions(name, tree)
        if path.name not in STANDALONE:
            yield from pointing(name, tree)
        yield from unclear(name, source, tree)
        if name.parts[1] not in UNHELD:
            for line, value in representations(tree):
                yield f"{name}:{line}: {{{value}!r}} in a message: use `quote` of specs/fields.py"
    for class_name, places in classes.items():
        if len(places) > 1:
            yield f"{places[0]}: class {class_name} exists {len(places)} times: {', '.join(places[1:])}"
    for place, alias in named:
        if alias in classes:
            yield f"{place}: the alias {alias} has the name of the class in {classes[alias][0]}"


def main() -> int:
    """Prints the findings. Returns the exit code."""
    lines = [
        *findings(PACKAGE),
        *(line for root in BESIDE for line in findings_beside(root)),
        *(line for root in PLAIN for line in unclear_beside(root)),
        *unclear_documents(ROOT),
    ]
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__)
    sys.exit(main())
