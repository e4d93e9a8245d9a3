"""Makes a deployment of a launch line: flags become fields, what sparkfleet manages is left out with the reason."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.arguments import (
    MODEL_FLAGS,
    NAME_FLAGS,
    NOT_FOR_FILES,
    EngineArguments,
    LeftOut,
    is_secret_name,
    known,
    managed,
)
from sparkfleet.fleet.conversion.script_launches import Launch
from sparkfleet.fleet.conversion.shell_command import shown, unknown_names
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.document import dump
from sparkfleet.specs.gguf_names import SUFFIX, tag_of
from sparkfleet.specs.load import deployment_of, parse_deployment, public_name

_OF_MACHINE = re.compile(
    r"PATH|HOME|USER|PWD|SHELL|LD_LIBRARY_PATH|PYTHONPATH|HF_HOME|CUDA_HOME|HF_HUB_OFFLINE|(?:CUDA|NVIDIA)_VISIBLE_DEVICES"
    r"|NVIDIA_DRIVER_CAPABILITIES|NVIDIA_DISABLE_REQUIRE|\w+_CACHE(?:_DIR|_PATH|_ROOT|_HOME)?|\w+_WORKSPACE_BASE",
    re.ASCII,
)
"""Variables of a machine or its image: paths, caches, and the GPU, of which a Spark has one."""
_CACHED = re.compile(
    r".*/models--([\w.-]+?)--([\w.-]+)(?:/snapshots/([^/]+)(?:/([^/]+\.gguf))?)?/?", re.ASCII | re.IGNORECASE
)
"""A checkpoint in the Hub's cache."""
_ORDER = (
    "name",
    "aliases",
    "model",
    "engine",
    "image",
    "context",
    "concurrency",
    "parallel",
    "speculation",
    "engine_args",
    "env",
)


class ConvertedLaunch(NamedTuple):
    """A deployment that was made of a launch line."""

    deployment: Deployment
    fields: Mapping[str, Any]
    """As they are written to a file."""
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    """Things that the launch line does besides, in words."""
    assumptions: tuple[str, ...]
    """Values that its file does not settle, in words."""


def converted(launch: Launch, directory: str) -> ConvertedLaunch:
    """The deployment that a launch line amounts to.

    Args:
        launch: the line.
        directory: absolute path of the one that relative paths of models begin at.

    Raises:
        SpecError: it names no model, or a value is not known or none that a deployment can have.
    """
    line = launch.line
    model = _model(launch, directory)
    names = (line.first(*NAME_FLAGS) or "").split()
    names = [one for name in names for one in name.split(",") if one]
    fields: dict[str, Any] = {"name": _public_name(names, model), "model": model, "engine": line.engine}
    if aliases := [name for name in names if name != fields["name"]]:
        fields["aliases"] = aliases
    if launch.image:
        fields["image"] = known(launch.image, "the image")
    args = EngineArguments(line)
    fields |= args.fields
    env, without = _environment(launch.env)
    fields |= {"engine_args": args.engine_args, "env": env}
    given_fields = {name: fields[name] for name in _ORDER if fields.get(name)}
    left_out = (*args.left_out, *without)
    return ConvertedLaunch(_checked(given_fields), given_fields, left_out, launch.notes, launch.assumptions)


def _model(launch: Launch, directory: str) -> str:
    line = launch.line
    given_model = line.first(*MODEL_FLAGS) or (line.positional[0] if line.positional else "")
    if not given_model:
        raise SpecError(
            f"The launch line of {line.engine} names no model.",
            means="It is read from the word behind the command, or from --model.",
            do="Write it there.",
        )
    model = known(given_model, "the model")
    if model.startswith("/"):
        model = known(_on_the_machine(model, launch.mounts), "the directory of the model")
    if model.startswith("./") or (model.endswith(SUFFIX) and not model.startswith("/")):
        model = os.path.normpath(f"{directory}/{model}")
    if found := _CACHED.fullmatch(model):
        org, name, commit, file = found.groups()
        at = f"@{commit}" if commit and re.fullmatch(r"[0-9a-f]{40}", commit) else ""
        tag = tag_of(file) if file else ""
        return f"{org}/{name}{at}{f':{tag}' if tag else ''}"
    revision = line.first("--revision")
    if revision and "/" in model and not model.startswith("/"):
        return f"{model}@{known(revision, '--revision')}"
    return model


def _on_the_machine(path: str, mounts: Mapping[str, str]) -> str:
    """A path of a container on the machine that runs it."""
    for target in sorted(mounts, key=len, reverse=True):
        if path == target or path.startswith(f"{target}/"):
            return f"{mounts[target]}{path[len(target) :]}"
    return path


def _public_name(names: Sequence[str], model: str) -> str:
    """The first name that can be a deployment's, or that of the model."""
    usable = (name for name in names if name == public_name(name))
    own = deployment_of(model)
    return next(usable, None) or (own.name if own is not None else public_name(PurePosixPath(model).name))


def _environment(env: Mapping[str, str]) -> tuple[dict[str, str], list[LeftOut]]:
    kept: dict[str, str] = {}
    left_out: list[LeftOut] = []
    for name, value in env.items():
        if (reason := managed({}, {name: value})) is not None:
            left_out.append(LeftOut(name, reason))
        elif is_secret_name(name):
            left_out.append(LeftOut(name, NOT_FOR_FILES))
        elif _OF_MACHINE.fullmatch(name):
            left_out.append(LeftOut(name, "a path, a cache or the GPU of a machine, which sparkfleet sets"))
        elif unknown_names(value):
            left_out.append(LeftOut(name, f"nothing sets its value, {shown(value)}"))
        else:
            kept[name] = value
    return kept, left_out


def _checked(fields: Mapping[str, Any]) -> Deployment:
    try:
        return parse_deployment(dump(dict(fields)), "deployment of this launch line")
    except SpecError as error:
        raise SpecError(error.what, means="Nothing was written.", do=error.do) from None
