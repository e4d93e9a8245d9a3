"""Loads inventory and deployment files, or reports every error in them.

The error is a `SpecError` with one line per problem:
`file:line: field.path: the found value. The expected value. Did you mean …?`
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from os.path import exists, isdir, isfile, join
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkfleet.errors import SpecError
from sparkfleet.specs.argument_items import argument_problems
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.document import MAX_BYTES, Document, FileProblem, UnreadableError, dump, read
from sparkfleet.specs.fields import HUB_ADDRESS, Spec, Where, escape, quote
from sparkfleet.specs.findings import explained, in_file
from sparkfleet.specs.gguf_names import SUFFIX, tag_of
from sparkfleet.specs.inventory import Inventory
from sparkfleet.specs.model_name import MAIN
from sparkfleet.specs.remote_code import code_problems
from sparkfleet.specs.standard_input import read_standard_input

AnyPath = str | PathLike[str]
M = TypeVar("M", bound=Spec)

_NO_INVENTORY = "The inventory lists the machines of the fleet; this command needs one."
_GET_INVENTORY = "`sparkfleet init HOST…` writes it; `-i FILE` or SPARKFLEET_INVENTORY gives another path."
_GIVE_MODEL = "A model of the Hub needs no file: ORG/MODEL in its place, with the name of its owner."
_OTHER_NAMES = "Files that share a name are planned one at a time, or get names of their own."

_MARKS: dict[type[Spec], set[str]] = {Inventory: {"fleet"}, Deployment: {"model", "variants"}}
"""Fields that one kind of file requires, and that the other never has."""
_KINDS: dict[type[Spec], str] = {Inventory: "an inventory", Deployment: "a deployment"}

STDIN = "-"

_MODEL_FILES = ("config.json", "adapter_config.json", "model_index.json")
"""Files of which a model's directory has one: a checkpoint, an adapter, a pipeline of diffusers."""
_GIVEN_MODEL = re.compile(
    rf"(?:{HUB_ADDRESS})?(?P<id>[^/@:?\s]+/(?P<name>[^/@:?\s]+))"
    r"(?:@(?P<at>[^:]+)|/tree/(?P<branch>[^:?]+)|/(?:blob|resolve)/(?P<commit>[^/?]+)/(?P<file>[^?\s]+\.gguf)(?:\?\S*)?)?"
    r"(?::(?P<tag>[^/:\s]+)|/?\?(?:\S*&)?show_file_info=(?P<shown>[^&\s]+\.gguf)(?:&\S*)?)?"
    r"|(?P<builtin>builtin:(?P<small>[^/\s]+))"
)
"""A model in place of a file: a Hub id, with a revision or without, its page's address, or a built-in model. A path has one
slash where an address has two."""

MAX_FINDINGS = 100
"""Most lines of one error; further problems are counted."""


class NoFile(SpecError):
    """Error: no file has that name."""


def load_inventory(path: AnyPath) -> Inventory:
    """Load an inventory file. Raises SpecError with every problem in it."""
    try:
        return _load(Inventory, path)[0]
    except NoFile as error:
        raise NoFile(error.what, means=_NO_INVENTORY, do=_GET_INVENTORY) from None


def load_deployment(path: AnyPath) -> Deployment:
    """Load a deployment file. Raises SpecError with every problem in it."""
    return _load(Deployment, path)[0]


def load_deployments(paths: Iterable[AnyPath]) -> tuple[Deployment, ...]:
    """Load several deployment files, in their order.

    Args:
        paths: files; a directory means every `*.yaml` and `*.yml` in it but inventories, `-` for standard input. A
            model in place of a file is a deployment that leaves everything open, see `deployment_of`.

    Raises:
        SpecError: with every problem in every file; the same public name in two files is a problem too.
    """
    loaded: list[Deployment] = []
    errors: list[str] = []
    places: dict[str, str] = {}
    remedies: dict[str, None] = {}
    for path in _files(paths, errors):
        file = _name(path)
        try:
            of_model = deployment_of(path)
            if of_model is not None:
                deployment, line = of_model, None
            else:
                deployment, document = _load(Deployment, path)
                line = document.lines["name",]
            if first := places.get(deployment.name):
                taken = f"{quote(deployment.name)} is already the name in {first}. Expected one of its own."
                remedies[_OTHER_NAMES] = None
                raise _error(file, [FileProblem(line, ("name",), taken)])
            places[deployment.name] = escape(file) if line is None else f"{escape(file)}:{line}"
            loaded.append(deployment)
        except SpecError as error:
            errors.append(error.what)
            if isinstance(error, NoFile):
                remedies[_GIVE_MODEL] = None
    if errors:
        raise SpecError("\n".join(errors), do="\n".join(remedies))
    return tuple(loaded)


def parse_inventory(text: str, name: str = "inventory.yaml") -> Inventory:
    """Parse an inventory. `name` is the file's name in errors. Raises SpecError with every problem."""
    return _parse(Inventory, text, name)[0]


def parse_deployment(text: str, name: str = "deployment.yaml") -> Deployment:
    """Parse a deployment. `name` is the file's name in errors. Raises SpecError with every problem."""
    return _parse(Deployment, text, name)[0]


def to_yaml(spec: Inventory | Deployment) -> str:
    """`spec` as YAML that loads to an equal one. Fields with their default value are left out."""
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    first = {name: fields.pop(name) for name in ("name", "model", "variants") if name in fields}
    return dump(first | fields)


def deployment_of(given: AnyPath) -> Deployment | None:
    """The deployment for a model that is given in place of a file; None if it is a file, or no model's name.

    Args:
        given: "org/name", "org/name@revision", "org/name:TAG", the address of a page of the Hub or of a GGUF file there,
            "builtin:NAME", a GGUF file, or a directory with a checkpoint. Files come first, and a path into a directory
            that exists is one.

    Raises:
        SpecError: a revision, or a name, has characters that none can have.
    """
    text = fspath(given)
    if text.endswith(SUFFIX) and (isfile(text) or text.startswith("/")):
        path = os.path.abspath(text)
        return _open_deployment(path, os.path.basename(path)[: -len(SUFFIX)])
    if isdir(text):
        path = os.path.abspath(text)
        return _open_deployment(path, os.path.basename(path)) if _is_model(path) else None
    found = _GIVEN_MODEL.fullmatch(text)
    if found is None or exists(text) or text.endswith((".yaml", ".yml")) or isdir(text.partition("/")[0]):
        return None
    if found["builtin"]:
        return _open_deployment(found["builtin"], found["small"])
    at, file = found["at"] or found["branch"] or found["commit"], found["file"] or found["shown"]
    revision = f"@{at}" if at and (not file or at != MAIN) else ""
    tag = found["tag"] or (tag_of(unquote(file)) if file else "")
    model = f"{found['id']}{revision}{f':{tag}' if tag else ''}"
    return _open_deployment(model, f"{found['name']}-{tag}" if tag else found["name"])


def public_name(text: str) -> str:
    """A text in the characters of a deployment's name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).lstrip("._-")[:63]


def _open_deployment(model: str, name: str) -> Deployment:
    """A deployment with a model and nothing else; its public name is the model's, in the characters of one."""
    try:
        return Deployment(name=public_name(name), model=model)
    except ValidationError as error:
        expected = error.errors(include_url=False)[0]["msg"]
        raise SpecError(
            f"{quote(model)} is no file, and no model's name. Expected a YAML file, or {expected}."
        ) from None


def _files(paths: Iterable[AnyPath], errors: list[str]) -> Iterator[AnyPath]:
    """The files of all paths, directories expanded; an empty directory is added to `errors`."""
    for path in paths:
        if not isdir(path) or _is_model(path):
            yield path
            continue
        found = sorted(entry for entry in Path(path).iterdir() if entry.suffix in (".yaml", ".yml"))
        deployments = [entry for entry in found if not _is_inventory(entry)]
        yield from deployments
        if not deployments:
            errors.append(f"{escape(fspath(path))}: has no deployment. Expected files that end in .yaml.")


def _is_model(directory: AnyPath) -> bool:
    """True for a directory with a model, also of a kind that is refused when it is read: the refusal explains it."""
    named = any(isfile(join(directory, name)) for name in _MODEL_FILES)
    return named or any(entry.suffix == SUFFIX for entry in Path(directory).iterdir())


def _is_inventory(path: Path) -> bool:
    try:
        given = read(_text(path)).value
    except (SpecError, UnreadableError):
        return False  # loading it reports the error
    return isinstance(given, dict) and "fleet" in given and not given.keys() & _MARKS[Deployment]


def _name(path: AnyPath) -> str:
    return "standard input" if fspath(path) == STDIN else fspath(path)


def _load(model: type[M], path: AnyPath) -> tuple[M, Document]:
    name = _name(path)
    with _naming(name):
        text = _text(path)
    return _parse(model, text, name)


def _parse(model: type[M], text: str, name: str) -> tuple[M, Document]:
    with _naming(name):
        document = read(text)
    value, errors = _validated(model, document.value)
    findings = [*document.findings, *explained(model, document, errors)]
    if isinstance(value, Deployment):
        findings += in_file(document, code_problems(value))
        findings += in_file(document, argument_problems(value))
    if value is None or findings:
        raise _error(name, [*_other_kind(model, document)][:1] or findings)
    return value, document


def _other_kind(model: type[Spec], document: Document) -> Iterator[FileProblem]:
    """The error of a file that is an inventory instead of a deployment, or the reverse."""
    keys = document.value if isinstance(document.value, dict) else {}
    if any(key in keys for key in _MARKS[model]):
        return
    for kind, marks in _MARKS.items():
        for key in (key for key in keys if key in marks):
            found = f"is a field of {_KINDS[kind]}, which this file seems to be. Expected {_KINDS[model]}."
            yield FileProblem(document.lines[key,], (key,), found)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except UnreadableError as error:
        raise _error(name, [FileProblem(error.line, (), error.text)]) from None


def _text(path: AnyPath) -> str:
    if fspath(path) == STDIN:
        return _decoded(read_standard_input(MAX_BYTES + 1))
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NoFile(f"{escape(fspath(path))}: no such file. Expected a YAML file.") from None
    except IsADirectoryError:
        raise UnreadableError(None, "is a directory. Expected a YAML file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(None, f"cannot be read: {escape(reason)}. Expected a YAML file.") from None
    return _decoded(content)


def _decoded(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise UnreadableError(None, f"is larger than {MAX_BYTES >> 20} MiB. Expected a YAML file.")
    if b"\0" in content:
        raise UnreadableError(None, "is binary. Expected a YAML file in UTF-8.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        raise UnreadableError(line, f"{found}. Expected a YAML file in UTF-8.") from None


def _validated(model: type[M], given: Any) -> tuple[M | None, list[ErrorDetails]]:
    """The model, or every error. Unknown fields are removed once, so that the checks between fields run too."""
    errors: list[ErrorDetails]
    try:
        return model.model_validate(given), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    extra = [error for error in errors if error["type"] == "extra_forbidden"]
    if not extra:
        return None, errors
    return None, extra + _validated(model, _without(given, {error["loc"] for error in extra}))[1]


def _without(value: Any, unwanted: set[Where], where: Where = ()) -> Any:
    if isinstance(value, dict):
        kept = ((key, item) for key, item in value.items() if (*where, key) not in unwanted)
        return {key: _without(item, unwanted, (*where, key)) for key, item in kept}
    if isinstance(value, tuple):
        return tuple(_without(item, unwanted, (*where, index)) for index, item in enumerate(value))
    return value


def _error(name: str, findings: Iterable[FileProblem]) -> SpecError:
    in_order = sorted(dict.fromkeys(findings), key=lambda finding: finding.line or 0)
    lines = [_line(name, finding) for finding in in_order[:MAX_FINDINGS]]
    if len(in_order) > MAX_FINDINGS:
        lines.append(f"{escape(name)}: and {len(in_order) - MAX_FINDINGS} more problems.")
    return SpecError("\n".join(lines))


def _line(name: str, finding: FileProblem) -> str:
    place = escape(name) if finding.line is None else f"{escape(name)}:{finding.line}"
    return ": ".join(part for part in (place, _dotted(finding.where), finding.text) if part)


def _dotted(where: Where) -> str:
    """`("links", 0, "nodes")` as `links[0].nodes`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_step(step)}" for step in where)
    return "".join(steps).removeprefix(".")


def _step(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else quote(key)
