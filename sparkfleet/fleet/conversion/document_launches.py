"""Finds the engines that a compose file or a recipe starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.container_line import ContainerLine
from sparkfleet.fleet.conversion.script_launches import Launch, container_launches, script_launches
from sparkfleet.fleet.conversion.shell_command import Assumptions
from sparkfleet.fleet.conversion.shell_text import commands_of

_OF_ENGINES = re.compile(
    r"(?:VLLM|SGLANG|SGL|LLAMA|GGML|TRTLLM|TLLM|NCCL|FLASHINFER|TORCH|PYTORCH|B12X|CUTE|HF|OMP|UCX)_"
)
"""Beginnings of variables that engines read: a container that exists has those of its image among its own."""


def is_document(text: str) -> bool:
    """True for the text of a compose file or a recipe, False for a script's."""
    return re.search(r"^(services|command|recipe_version|model)\s*:", text, re.MULTILINE) is not None


def is_inspected(text: str) -> bool:
    """True for what `docker inspect` prints."""
    return text.lstrip().startswith("[") and '"Config"' in text


def inspected_launches(text: str) -> tuple[Launch, ...]:
    """The engines of containers that exist, by `docker inspect` or `podman inspect`. Raises SpecError if it is no JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError(f"The text is no JSON: {error}.") from None
    return tuple(
        launch
        for one in found
        if isinstance(one, dict) and isinstance(one.get("Config"), dict)
        for launch in _of_inspected(one)
    )


def _of_inspected(one: Mapping[str, Any]) -> Iterator[Launch]:
    config = one["Config"]
    given = dict(_environment(config.get("Env")))
    env = {name: value for name, value in given.items() if _OF_ENGINES.match(name)}
    command = [*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))]
    mounts = {
        str(mount["Destination"]): str(mount["Source"])
        for mount in one.get("Mounts") or ()
        if isinstance(mount, dict) and mount.get("Source") and mount.get("Destination")
    }
    container = ContainerLine(tuple(command), str(config.get("Image", "")), env, mounts)
    for launch in container_launches(container, given):
        yield launch._replace(name=str(one.get("Name", "")).lstrip("/"))


def _words(given: object) -> list[str]:
    """The words of a command; podman prints an entrypoint as one text."""
    if isinstance(given, str):
        return given.split()
    return [str(word) for word in given] if isinstance(given, list) else []


def document_launches(text: str, assumed: Assumptions) -> tuple[Launch, ...]:
    """The engines of a compose file's services, or of a recipe. Raises SpecError if the text is neither."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"The text is no YAML: {str(error).splitlines()[0]}.") from None
    services = found.get("services") if isinstance(found, dict) else None
    if isinstance(services, dict):
        return tuple(
            launch
            for name, service in services.items()
            if isinstance(service, dict)
            for launch in _of_service(str(name), service, assumed)
        )
    if isinstance(found, dict) and isinstance(found.get("command"), str):
        return tuple(_of_recipe(found, assumed))
    raise SpecError(
        "The text is YAML with neither `services` nor a `command`.",
        means="A compose file has the first, a recipe the second.",
        do="`sparkfleet plan FILE` reads deployments.",
    )


def _of_service(name: str, service: Mapping[str, Any], assumed: Assumptions) -> Iterator[Launch]:
    variables = assumed.given
    env = {key: _filled(value, variables) for key, value in _environment(service.get("environment"))}
    entrypoint = _service_words(service.get("entrypoint"), variables)
    words = [*entrypoint, *_service_words(service.get("command"), variables)]
    mounts = dict(_service_mounts(service.get("volumes"), variables))
    image = _filled(str(service.get("image", "")), variables)
    container = ContainerLine(tuple(words), image, env, mounts, has_entrypoint=bool(entrypoint))
    for launch in container_launches(container, {**variables, **env}, assumed):
        yield launch._replace(name=name)


def _service_words(given: object, variables: Mapping[str, str]) -> list[str]:
    """The words of a command: a list, or one text that compose splits as a shell does; `$$` is a dollar sign."""
    if isinstance(given, list):
        return [_filled(str(one), variables).replace("$$", "$") for one in given]
    if not isinstance(given, str):
        return []
    return [word for one in commands_of(given.replace("\n", " "), variables) for word in one.words]


def _environment(given: object) -> Iterator[tuple[str, str]]:
    if isinstance(given, dict):
        yield from ((str(key), str(value)) for key, value in given.items() if value is not None)
    elif isinstance(given, list):
        for one in given:
            key, equals, value = str(one).partition("=")
            if equals:
                yield key, value


def _service_mounts(given: object, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for one in given if isinstance(given, list) else ():
        if isinstance(one, dict):
            source, target = str(one.get("source", "")), str(one.get("target", ""))
        else:
            source, _, rest = _filled(str(one), variables).partition(":")
            target = rest.partition(":")[0]
        if source and target:
            yield target.rstrip("/"), source.rstrip("/")


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """A text with its variables filled in, without splitting it."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    words = [word for one in commands_of(f'x "{quoted}"', variables) for word in one.words]
    return words[1] if len(words) == 2 else text


def _of_recipe(recipe: Mapping[str, Any], assumed: Assumptions) -> Iterator[Launch]:
    """A recipe of sparkrun or of eugr/spark-vllm-docker: `{name}` in its command is one of its `defaults`, or its model."""
    defaults = recipe.get("defaults")
    values = {str(key): str(value) for key, value in (defaults.items() if isinstance(defaults, dict) else ())}
    values |= {key: value for key in ("model", "container") if isinstance(value := recipe.get(key), str)}
    values |= assumed.given
    command = _formatted(recipe["command"], values)
    env = {key: _formatted(value, values) for key, value in _environment(recipe.get("env"))}
    mods = recipe.get("mods")
    patches = ", ".join(PurePosixPath(str(one)).name for one in mods) if isinstance(mods, list) else ""
    notes = (f"it patches the image first ({patches}): the image has to contain that",) if patches else ()
    image = str(recipe.get("container") or "")
    for launch in script_launches(command, {**values, **env}, assumed):
        yield launch._replace(
            name=str(recipe.get("name") or ""),
            image=launch.image or image,
            env={**env, **launch.env},
            notes=(*notes, *launch.notes),
        )


def _formatted(text: str, values: Mapping[str, str]) -> str:
    """A text with `{name}` filled in, as far as there is a value; other braces are those of JSON."""
    return re.sub(r"\{([A-Za-z_]\w*)\}", lambda one: values.get(one[1], one[0]), text)
