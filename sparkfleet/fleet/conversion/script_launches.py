"""Finds the engines that a shell script, or a unit of systemd, starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath
from typing import NamedTuple

from sparkfleet.fleet.conversion.container_line import TOOLS, ContainerLine, container_of
from sparkfleet.fleet.conversion.engine_line import EngineLine, engine_line
from sparkfleet.fleet.conversion.shell_command import NOTHING_ASSUMED, Assumptions, ShellCommand, shown
from sparkfleet.fleet.conversion.shell_text import commands_of

_MOST_WORDS = 3
"""Words of another command that are shown, up to its first option: what follows may be a secret."""
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
_TYPED_TO = re.compile(r"-[il]+|--login|--norc|--noprofile")
"""Options of a shell that reads commands as they are typed."""
_HARMLESS = frozenset(
    {
        *("cd", "set", "sleep", "wait", "trap", "source", ".", "true", "false", "exit", "return", "read", "shift", "test"),
        *("if", "then", "else", "elif", "fi", "for", "do", "done", "while", "until", "case", "esac", "function", "[", "[["),
        *("{", "}", "!", "echo", "printf", "cat", "curl", "tail", "head", "grep", "mkdir", "ls", "date", "clear", "kill"),
        *("tee", "getopts"),
        *("pkill", "unset", "ulimit", "umask", "sudo", "hf", "huggingface-cli", "nvidia-smi", "docker", "podman", "ray"),
    }
)  # fmt: skip
"""Commands of launch scripts that need no equivalent in a deployment."""


class Launch(NamedTuple):
    """One engine that a text starts."""

    line: EngineLine
    name: str = ""
    """Name of the service or recipe; "" if it has none."""
    image: str = ""
    env: Mapping[str, str] = {}
    mounts: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    """Things that it does besides, in words."""
    assumptions: tuple[str, ...] = ()
    """Values that the text does not settle, in words."""


def script_launches(
    text: str, variables: Mapping[str, str], assumed: Assumptions = NOTHING_ASSUMED
) -> Iterator[Launch]:
    """The engines that a script starts, or the `ExecStart=` of a unit."""
    unit = re.findall(r"^ExecStart=-?((?:[^\\\n]|\\[\s\S])*)", text, re.MULTILINE)
    if unit and re.search(r"^\[Service\]", text, re.MULTILINE):
        settings = re.findall(r"^Environment=(.*)", text, re.MULTILINE)
        env = {
            name: value
            for setting in settings
            for one in commands_of(f"x {setting}")
            for name, equals, value in (word.partition("=") for word in one.words[1:])
            if equals
        }
        for line in unit:
            yield from _of_commands(commands_of(line, {**variables, **env}, assumed), env, assumed)
        return
    yield from _of_commands(commands_of(text, variables, assumed), {}, assumed)


def _of_commands(
    commands: Sequence[ShellCommand], env: Mapping[str, str], assumed: Assumptions
) -> Iterator[Launch]:
    """The engines that commands start, each with what is done besides, and the variables that are exported before."""
    others = tuple(dict.fromkeys(words for one in commands if (words := _besides(one))))
    containers = _Containers()
    for command in commands:
        container = containers.entered_by(command)
        for launch in _of_command(command, container, env, assumed):
            typed = containers.around(launch, command) if container is None else launch
            yield typed._replace(notes=(*typed.notes, *others))


class _Containers:
    """The containers of a script: those with a name, and the one in whose shell further commands are typed."""

    def __init__(self) -> None:
        self._named: dict[str, ContainerLine] = {}
        self._open: ContainerLine | None = None
        self._exported: Mapping[str, str] = {}
        """Variables of the machine when its shell began."""

    def entered_by(self, command: ShellCommand) -> ContainerLine | None:
        """The container that a command runs, or runs a program in; None if it runs none."""
        found = container_of(command.words, {**command.variables, **command.env})
        if found is None:
            if command.words in (("exit",), ("logout",)):
                self._open = None
            return None
        if found.is_running:
            at_start = self._named.get(found.name, found)
            env = {**at_start.env, **found.env}
            found = at_start._replace(command=found.command, env=env, has_entrypoint=True)
        elif found.name:
            self._named[found.name] = found
        self._open = found if _is_shell(found) else None
        self._exported = command.env
        return found

    def around(self, launch: Launch, command: ShellCommand) -> Launch:
        """A launch that is typed in the shell of a container, with its image."""
        if self._open is None or launch.image:
            return launch
        own = {name: value for name, value in launch.env.items() if self._exported.get(name) != value}
        return _in_container(launch._replace(env={**self._open.env, **own}), self._open)


def _is_shell(container: ContainerLine) -> bool:
    """True if commands are typed in a container: its command is a shell, or its image's own may be one."""
    words = container.command
    if not words:
        return container.is_interactive and engine_line((), container.image) is None
    return PurePosixPath(words[0]).name in _SHELLS and all(_TYPED_TO.fullmatch(word) for word in words[1:])


def _of_command(
    command: ShellCommand, container: ContainerLine | None, env: Mapping[str, str], assumed: Assumptions
) -> Iterator[Launch]:
    own = {**env, **_env_words(command.words), **command.env}
    if container is not None:
        for launch in container_launches(container, container.env, assumed):
            yield launch._replace(env={**container.env, **launch.env})
        return
    found = tuple(_of_script(command.words, {**command.variables, **own}, own, assumed))
    yield from found
    if not found and (line := engine_line(command.words)) is not None:
        yield Launch(line, env=own)


def container_launches(
    container: ContainerLine, variables: Mapping[str, str], assumed: Assumptions = NOTHING_ASSUMED
) -> Iterator[Launch]:
    """The engines that a container starts, by its image or by a command. `variables`: of a shell in it."""
    found = tuple(_of_script(container.command, variables, container.env, assumed))
    image = "" if container.has_entrypoint else container.image
    if not found and not _is_shell(container) and (line := engine_line(container.command, image)) is not None:
        found = (Launch(line, env=container.env),)
    yield from (_in_container(launch, container) for launch in found)


def _in_container(launch: Launch, container: ContainerLine) -> Launch:
    unread = tuple(f"it reads variables from {shown(file)}, which was not read" for file in container.unread)
    return launch._replace(image=container.image, mounts=container.mounts, notes=(*launch.notes, *unread))


def _of_script(
    words: Sequence[str], variables: Mapping[str, str], env: Mapping[str, str], assumed: Assumptions
) -> Iterator[Launch]:
    """The engines of the text that a shell among the words runs; none if its arguments are the command (`exec "$@"`)."""
    if (script := _script_of(words)) is not None:
        yield from _of_commands(commands_of(script, variables, assumed), env, assumed)


def _script_of(words: Sequence[str]) -> str | None:
    """The text that a shell among the words runs: `bash -c TEXT`; None without one."""
    for at, word in enumerate(words[:-1]):
        if PurePosixPath(word).name in _SHELLS:
            rest = list(words[at + 1 :])
            while rest and rest[0].startswith("-"):
                if _SCRIPT_FLAG.fullmatch(rest[0]) and len(rest) > 1:
                    return rest[1]
                rest.pop(0)
    return None


def _env_words(words: Sequence[str]) -> dict[str, str]:
    """Variables of `env NAME=VALUE … COMMAND`, and of `mpirun -x NAME=VALUE`."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        is_env = words[0] == "env" or (at > 0 and words[at - 1] == "-x")
        if is_env and equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            found[name] = value
        elif words[0] == "env" and at > 0:
            break
    return found


def _besides(command: ShellCommand) -> str:
    """A command of a script that changes what the engine runs in, such as `pip install`; "" for any other one."""
    words = command.words
    name = PurePosixPath(words[0]).name
    if name in _HARMLESS or name in _SHELLS or name in TOOLS or words[0].startswith(("-", "$")):
        return ""
    if container_of(words, {}) is not None or engine_line(words) is not None:
        return ""
    plain = list(takewhile(lambda word: not word.startswith("-"), words))[:_MOST_WORDS]
    text = shown(" ".join(plain)) + (" …" if len(plain) < len(words) else "")
    return f"it also runs `{text}`: the image has to contain what that does"
