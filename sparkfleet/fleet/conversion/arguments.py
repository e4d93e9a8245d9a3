"""Sorts the arguments of a launch line: fields of a deployment, `engine_args`, and what sparkfleet manages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.engine_line import EngineFlag, EngineLine
from sparkfleet.fleet.conversion.shell_command import shown, unknown_names
from sparkfleet.fleet.conversion.speculation_flags import speculation_of
from sparkfleet.planner.engine_args.engine_args import MEMORY_FLAGS, whole_number
from sparkfleet.planner.engine_args.reserved_flags import OURS, given
from sparkfleet.planner.engine_args.user_overrides import KV_FREE, MOST, OWN_OPTIONS
from sparkfleet.specs.fields import quote
from sparkfleet.specs.flag_fields import DEGREES, SIZES

MODEL_FLAGS = ("--model", "--model-path", "-m", "-hf", "-hfr", "--hf-repo")
NAME_FLAGS = ("--served-model-name", "--alias", "-a")
_IN_FIELDS = frozenset({*MODEL_FLAGS, *NAME_FLAGS, "--revision"})
_LLAMA_CPP_SIZES = ("--ctx-size", "-c", "--parallel", "-np")
_SHARES = (*MEMORY_FLAGS.values(), *KV_FREE)
FEW_REQUESTS = 4
"""Requests at once up to which a limit is taken for `concurrency`: as many as a plan takes by itself."""
_LIMIT = (
    "a limit of requests that share the KV cache; `concurrency: {}` would reserve memory for as many of the whole context."
    " The plan shows how many fit (`also fits`)"
)
NOT_FOR_FILES = "a secret: a file of a deployment is no place for it"
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?", re.IGNORECASE)
"""Last word of the name of a flag or a variable that holds a secret."""
_REASONS = {
    **dict.fromkeys(_SHARES, "the plan sizes it for the memory of the nodes, `context` and `concurrency`"),
    "--trust-remote-code": "most models need no code of their own; for one that does: `trust_remote_code: true`, and its"
    " commit in `model`",
    **dict.fromkeys(
        OWN_OPTIONS, "sparkfleet writes that file; what it set beyond fields of a deployment is lost"
    ),
}
"""Reasons for leaving flags out that a deployment may have."""


class LeftOut(NamedTuple):
    """Something of a launch line that is not in the deployment."""

    what: str
    why: str


class EngineArguments:
    """The arguments of a launch line: those with a field, those for the engine, and those that are left out."""

    def __init__(self, line: EngineLine) -> None:
        self.fields: dict[str, Any] = {}
        self.engine_args: list[str] = []
        self.left_out: list[LeftOut] = []
        self._degrees: dict[str, int] = {}
        self._line = line
        speculation = speculation_of(line)
        done = frozenset[str]()
        if speculation is not None:
            self.fields["speculation"] = dict(speculation.field)
            done = speculation.flags
            self.left_out += (
                LeftOut(one, "of the speculation; the plan sets what it needs besides")
                for one in speculation.rest
            )
        if line.engine == "llama.cpp":
            self._llama_cpp_sizes()
        for flag in line.flags:
            if flag.name not in done and flag.plain not in _IN_FIELDS:
                self._take(flag)
        if self._degrees:
            self.fields["parallel"] = self._degrees

    def _take(self, flag: EngineFlag) -> None:
        size, degree = SIZES.get(flag.plain), DEGREES.get(flag.plain)
        is_llama_cpp = self._line.engine == "llama.cpp"
        if is_llama_cpp and flag.plain in _LLAMA_CPP_SIZES:
            return
        if (size or degree) and not is_llama_cpp:
            self._number(flag, size, degree)
        elif flag.plain == "--enable-expert-parallel":
            ranks = self._line.first("--tensor-parallel-size", "-tp", "--tp-size", "--tp")
            if ranks and ranks.isdigit() and int(ranks) > 1:
                self._degrees["ep"] = int(ranks)
        elif (reason := self._reason(flag)) is not None:
            what = f"{flag.name}={flag.value}" if flag.plain in _SHARES else flag.name
            self.left_out.append(LeftOut(what, reason))
        else:
            self.engine_args += [known(word, flag.name) for word in self._words(flag)]

    def _words(self, flag: EngineFlag) -> tuple[str, ...]:
        """A flag and its value as one item, if its engine's parser takes them so."""
        if len(flag.values) == 1 and flag.name.startswith("--") and self._line.engine != "llama.cpp":
            return (f"{flag.name}={flag.value}",)
        return flag.words

    def _number(self, flag: EngineFlag, size: str | None, degree: str | None) -> None:
        name = size or degree or ""
        text = known(flag.value, flag.name)
        if text in ("auto", "-1"):
            return
        number = whole_number(text, MOST[name])
        if number is None:
            raise SpecError(f"{flag.name} is {quote(text)}, not a whole number from 1 to {MOST[name]}.")
        if name == "concurrency" and number > FEW_REQUESTS:
            self.left_out.append(LeftOut(f"{flag.name}={text}", _LIMIT.format(number)))
        elif size:
            self.fields[size] = number
        elif number > 1 or name == "tp":
            self._degrees[name] = number

    def _llama_cpp_sizes(self) -> None:
        """llama.cpp's context is that of all slots together unless they share one cache; 0 is the model's own."""
        slots = whole_number(self._line.first("--parallel", "-np") or "", MOST["concurrency"])
        is_shared = self._line.first("--kv-unified", "-kvu") is not None
        context = whole_number(self._line.first("--ctx-size", "-c") or "", MOST["context"])
        if context is not None:
            self.fields["context"] = max(1, context // (1 if is_shared else slots or 1))
        if slots is not None:  # each of them has its own part of the cache, or may take all of it
            self.fields["concurrency"] = slots

    def _reason(self, flag: EngineFlag) -> str | None:
        """Reason for leaving a flag out; None for one that the engine gets as it is."""
        if flag.plain in _REASONS and (flag.plain not in OWN_OPTIONS or self._line.engine == "trtllm"):
            return _REASONS[flag.plain]
        if flag.plain not in OURS and is_secret_name(flag.plain):
            return NOT_FOR_FILES
        if flag.plain == "--chat-template" and not flag.value.startswith("/"):
            return f"{flag.value} is a file of its image or directory; the model's own template is used"
        return managed({flag.plain: flag.value}, {}, is_llama_cpp=self._line.engine == "llama.cpp")


def is_secret_name(name: str) -> bool:
    """True for a flag or a variable that holds a secret, by its last word: `--hf-token`, `MY_API_KEY`."""
    return _SECRET.fullmatch(re.split("[-_]", name)[-1]) is not None


def managed(flags: Mapping[str, str], env: Mapping[str, str], *, is_llama_cpp: bool = False) -> str | None:
    """Reason for which sparkfleet sets a flag or a variable itself; None if a deployment may set it."""
    found = next(given(flags, env, llama_cpp=is_llama_cpp), None)
    return None if found is None else found.reason.partition(": ")[2]


def known(text: str, what: str) -> str:
    """A text whose variables are all known. Raises SpecError with those that are not."""
    missing = unknown_names(text)
    if not missing:
        return text
    first = missing[0]
    if first.startswith("$"):
        raise SpecError(
            f"{what} is {quote(shown(text))}: the output of a command, which is not run.",
            do="Write its value into the line.",
        )
    names = ", ".join(f"${name}" if name.isdigit() else name for name in missing)
    raise SpecError(
        f"{what} is {quote(shown(text))}, and nothing sets {names}.", do=f"`--set {first}=VALUE` sets it."
    )
