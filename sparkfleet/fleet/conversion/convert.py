"""Makes deployments of a file with launch lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.conversion import ConvertedLaunch, converted
from sparkfleet.fleet.conversion.deployment_text import deployment_text
from sparkfleet.fleet.conversion.launches import launches_in, unset_names, unset_words
from sparkfleet.fleet.conversion.script_launches import Launch
from sparkfleet.specs.fields import quote
from sparkfleet.specs.standard_input import read_standard_input

STDIN = "-"
MOST_BYTES = 1 << 20
"""Longest file: a thousand times as long as a launch script."""


def convert(file: str, variables: Mapping[str, str], only: str | None = None) -> tuple[ConvertedLaunch, ...]:
    """The deployments of the launch lines in a file, in its order. Nothing of it is run.

    Args:
        file: path; `-` is standard input.
        variables: values of variables and positional parameters, instead of the file's own.
        only: name of a service, a model or a deployment; None: all of them.

    Raises:
        SpecError: the file cannot be read, has no launch line, or one that no deployment can be made of.
    """
    text = _text(file)
    for name in variables:
        if re.search(rf"[${{]{name}\b", text) is None:
            raise SpecError(
                f"{source_name(file)} has no variable {name}.", means="`--set` sets one that it uses."
            )
    found = launches_in(text, variables)
    if not found:
        raise _nothing_found(file, text, unset_names(text, variables))
    directory = os.path.abspath(os.curdir if file == STDIN else os.path.dirname(file) or os.curdir)
    named = [one for one in found if only is None or only in _names(one, directory)]
    if not named:
        names = ", ".join(_names(one, directory)[0] for one in found)
        raise SpecError(f"{source_name(file)} has no launch line named {quote(only or '')}. It has {names}.")
    return tuple(converted(one, directory) for one in named)


def write_deployments(found: Sequence[ConvertedLaunch], file: str, directory: Path) -> tuple[Path, ...]:
    """Write a file for each deployment, named as it is. Raises SpecError if one exists, or two have one name."""
    paths = tuple(directory / f"{one.deployment.name}.yaml" for one in found)
    taken = [path for path in paths if path.exists() or paths.count(path) > 1]
    if taken:
        raise SpecError(
            f"{taken[0]} {'exists' if taken[0].exists() else 'would be written twice'}.",
            means="Nothing was written.",
            do="`--only NAME` takes one launch line; without `--output` it is printed.",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for path, one in zip(paths, found, strict=True):
        path.write_text(deployment_text(one, source_name(file)), encoding="utf-8")
    return paths


def _names(launch: Launch, directory: str) -> tuple[str, ...]:
    """Names under which a launch line can be selected."""
    try:
        deployment = converted(launch, directory).deployment
    except SpecError:
        return (launch.name or launch.line.engine,)
    return (*((launch.name,) if launch.name else ()), deployment.name, deployment.model or "")


def _text(file: str) -> str:
    try:
        if file == STDIN:
            data = read_standard_input(MOST_BYTES + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{source_name(file)} cannot be read: {error.strerror}.") from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{source_name(file)} is longer than {MOST_BYTES} bytes. Expected a launch script.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecError(f"{source_name(file)} is no text in UTF-8.") from None


def source_name(file: str) -> str:
    """The file in words."""
    return "standard input" if file == STDIN else file


def _nothing_found(file: str, text: str, unset: Sequence[str]) -> SpecError:
    what = f"{source_name(file)} has no launch line of an engine that sparkfleet runs."
    if re.search(r"\bollama\s+(?:run|pull|serve)\b", text) is not None:
        return SpecError(
            what,
            means="Ollama's models are GGUF files that llama.cpp serves.",
            do="`sparkfleet plan ORG/NAME:TAG` plans a GGUF of the Hub, such as unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL.",
        )
    sought = "It looks for `vllm serve`, `sglang.launch_server`, `trtllm-serve` and `llama-server`, also in `docker run`."
    if not unset:
        return SpecError(what, means=sought, do="`sparkfleet plan ORG/NAME` plans a model by its name.")
    return SpecError(
        what,
        means=f"{sought}{unset_words(unset)}",
        do=f"If one of them is part of that line: `--set {unset[0]}=VALUE`.",
    )
