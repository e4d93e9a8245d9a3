"""Reads `docker run …`: its image, and the command, variables and directories of the container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

TOOLS = frozenset({"docker", "podman", "nerdctl"})
_SWITCHES = frozenset(
    {
        *(
            "--detach",
            "--help",
            "--init",
            "--interactive",
            "--no-healthcheck",
            "--oom-kill-disable",
            "--privileged",
        ),
        *(
            "--publish-all",
            "--quiet",
            "--read-only",
            "--rm",
            "--sig-proxy",
            "--tty",
            "--disable-content-trust",
        ),
    }
)
"""Long options of `docker run` that take no value (docs.docker.com/reference/cli/docker/container/run)."""
_SHORT_SWITCHES = frozenset("ditqP")
_IS_TERMINAL = re.compile(r"-[dqP]*[it][ditqP]*")
_LAUNCHER = "launch-cluster.sh"
"""Script of eugr/spark-vllm-docker, which runs a command in a container on each Spark: `-t IMAGE -e NAME=VALUE exec …`."""
_LAUNCHER_VALUES = frozenset(
    {"-t", "-n", "-e", "--name", "--nodes", "--eth-if", "--ib-if", "--apply-mod", "--config"}
)


class ContainerLine(NamedTuple):
    """One container."""

    command: tuple[str, ...]
    """Of the program in it; () for the image's own."""
    image: str = ""
    env: Mapping[str, str] = {}
    mounts: Mapping[str, str] = {}
    """Directories and files of the machine by their paths in the container."""
    unread: tuple[str, ...] = ()
    """Files with variables that it reads."""
    name: str = ""
    """Its own; "" if it is given none."""
    has_entrypoint: bool = False
    """The program of its image is replaced."""
    is_interactive: bool = False
    """It has a terminal."""
    is_running: bool = False
    """It runs already: the program is started in it by `exec`."""


def container_of(words: Sequence[str], variables: Mapping[str, str]) -> ContainerLine | None:
    """The container that a command runs, or runs a program in; None if it runs none.

    Args:
        words: of the command.
        variables: of the shell, for `-e NAME` without a value.
    """
    for at, word in enumerate(words):
        name, rest = PurePosixPath(word).name, list(words[at + 1 :])
        if name == _LAUNCHER:
            return _launched(rest)
        if name in TOOLS and rest[:1] and rest[0] in ("run", "create"):
            return _run(rest[1:], variables)
        if name in TOOLS and rest[:2] == ["container", "run"]:
            return _run(rest[2:], variables)
        if name in TOOLS and rest[:1] == ["exec"]:
            options, command = _split(rest[1:])
            return ContainerLine(
                tuple(command[1:]),
                env=_variables(options, variables),
                name=command[0] if command else "",
                is_running=True,
            )
    return None


def _launched(words: Sequence[str]) -> ContainerLine:
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        flag, _, value = rest.pop(0).partition("=")
        if not value and flag in _LAUNCHER_VALUES and rest:
            value = rest.pop(0)
        options.append((flag, value))
    command = rest[1:] if rest[:1] == ["exec"] else rest
    image = next((value for flag, value in options if flag == "-t"), "")
    env = dict(value.partition("=")[::2] for flag, value in options if flag == "-e" and "=" in value)
    return ContainerLine(tuple(command), image, env)


def _run(words: Sequence[str], variables: Mapping[str, str]) -> ContainerLine:
    options, rest = _split(words)
    entrypoint = [value for flag, value in options if flag == "--entrypoint" and value][-1:]
    return ContainerLine(
        command=(*entrypoint, *rest[1:]),
        image=rest[0] if rest else "",
        env=_variables(options, variables),
        mounts=dict(_mounts(options)),
        unread=tuple(value for flag, value in options if flag == "--env-file"),
        name=next((value for flag, value in options if flag == "--name"), ""),
        has_entrypoint=bool(entrypoint),
        is_interactive=any(
            flag in ("--interactive", "--tty") or _IS_TERMINAL.fullmatch(flag) for flag, _ in options
        ),
    )


def _split(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options in front, each with its value, and the rest: the image, or the container, and the command."""
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            takes = flag not in _SWITCHES
        else:
            takes, flag, value, equals = _short(word)
        if takes and not equals and rest:
            value = rest.pop(0)
        options.append((_LONG.get(flag, flag), value))
    return options, rest


_LONG = {"-e": "--env", "-v": "--volume"}


def _short(word: str) -> tuple[bool, str, str, str]:
    """`-it`, `-e`, `-eNAME=x`: takes a value, the flag, the value behind it, and "=" if it has one."""
    letters = word[1:]
    while letters and letters[0] in _SHORT_SWITCHES:
        letters = letters[1:]
    if not letters:
        return False, word, "", ""
    return True, f"-{letters[0]}", letters[1:].removeprefix("="), "=" if letters[1:] else ""


def _variables(options: Sequence[tuple[str, str]], variables: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for flag, value in options:
        if flag != "--env":
            continue
        name, equals, text = value.partition("=")
        if equals:
            found[name] = text
        elif name in variables:
            found[name] = variables[name]
    return found


def _mounts(options: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Paths in the container, each with that of the machine."""
    for flag, value in options:
        if flag == "--volume":
            source, _, rest = value.partition(":")
            if rest:
                yield rest.partition(":")[0].rstrip("/"), source.rstrip("/")
        elif flag == "--mount":
            keys = dict(part.partition("=")[::2] for part in value.split(","))
            source = keys.get("source") or keys.get("src", "")
            target = keys.get("target") or keys.get("dst") or keys.get("destination", "")
            if source and target:
                yield target.rstrip("/"), source.rstrip("/")
