"""Diagnoses a failed start from the engine's output, its exit code and the memory that was left. Pure.

The signatures are in `signatures.yaml`; a new one needs an entry there and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from sparkfleet.errors import Cause
from sparkfleet.knowledge.data_file import DataFile, UniqueEntries
from sparkfleet.units import GIB, gib
from sparkfleet.values import Value

LOW_BYTES = 3 * GIB
"""MemAvailable below which a Spark is about to freeze (2 to 3 GiB and falling: flowy0/gb10-experiments)."""
LINES, WIDTH = 500, 500
"""Bounds of the search: the last `LINES` lines of a log, `WIDTH` characters of each."""
NEAR = 60
"""Lines before a match that may contain its context: about the length of a traceback."""
LAST = 5
EVIDENCE = 300
"""Characters of a line that are kept as evidence."""

KILLED = (-9, 137)
NOT_RUN = (126, 127)
"""Exit codes of a shell or a container tool: not executable, not found."""


WORDS = {
    Cause.KNOWN: "known issue",
    Cause.MEMORY: "out of memory",
    Cause.PORT: "port in use",
    Cause.MISSING: "something missing",
    Cause.FLAG: "refused setting",
    Cause.AWAY: "node gone",
    Cause.TOOL: "container tool",
    Cause.TRANSIENT: "transient",
    Cause.UNKNOWN: "unknown",
}
"""Causes as the user reads them."""
AGAIN = frozenset({Cause.PORT, Cause.AWAY, Cause.TOOL, Cause.TRANSIENT})
"""Causes after which the same candidate may be started again; after any other the next rung is."""
DAY_S = 86_400.0
LASTS_S = {
    Cause.KNOWN: math.inf,
    Cause.FLAG: math.inf,
    Cause.MEMORY: DAY_S,
    Cause.MISSING: DAY_S,
    Cause.AWAY: DAY_S,
    Cause.UNKNOWN: DAY_S,
}
"""Seconds for which a failure of each cause excludes the candidate; inf: until the candidate or its nodes change; absent:
not at all. Causes of a day also depend on things outside a candidate: other use of the node's memory, a file, a network
(docs/decisions.md)."""


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_compiles), Field(min_length=4)]


def _cause(text: str) -> Cause:
    # Not the class itself: pydantic cannot read the signature that an Enum has on Python 3.12 and later.
    return Cause(text)


class Signature(Value):
    """One sign of one cause. Its fields are described at the head of the file."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    cause: Annotated[Cause, BeforeValidator(_cause)]
    rule: str = ""
    pattern: Pattern
    context: Pattern | None = None
    without: Pattern | None = None
    ends: bool = False
    engines: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    summary: str
    examples: Annotated[tuple[str, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _whole(self) -> Signature:
        if self.cause in (Cause.AWAY, Cause.TOOL, Cause.UNKNOWN):
            raise ValueError("a signature needs a cause that a log can show")
        if self.cause is Cause.KNOWN and not self.rule:
            raise ValueError("a known issue needs a rule")
        return self


class Signatures(Value):
    """Contents of `signatures.yaml`, in its order."""

    signatures: UniqueEntries[Signature]


SIGNATURES = DataFile("signatures.yaml", Signatures, package="sparkfleet.engines")


class Failure(Value):
    """A rank that did not become ready, or ended."""

    engine: str
    method: str = "none"
    """Speculative method."""
    exit_code: int | None = None
    """None: it still ran when the time was up. Negative: the signal that ended it."""
    log: tuple[str, ...] = ()
    """The last lines that it printed, oldest first."""
    served: bool = False
    """It was ready before: lines of its start may no longer be in `log`."""
    out_of_memory: bool = False
    """The kernel has killed a process of it for lack of memory, by its supervisor's record."""
    memory_low: int | None = None
    """Lowest MemAvailable measured on its node since it was started, bytes."""


class Diagnosis(Value):
    """Cause, and the evidence for it. Its JSON keeps the name `says` of earlier releases, which stores and `--json` have."""

    model_config = ConfigDict(serialize_by_alias=True)

    cause: Cause
    rule: str = ""
    """Id of the known issue, for `sparkfleet explain`; "" if there is none."""
    signature: str = ""
    summary: str = Field(validation_alias=AliasChoices("summary", "says"), serialization_alias="says")
    """One sentence."""
    evidence: str = ""
    """The line that matched; "" if none did."""
    began: bool = True
    """False: not every rank was started, so the failure is no evidence against the candidate."""
    nodes: tuple[str, ...] = ()
    """Nodes whose container tool does not work, if that is the cause."""

    @property
    def again(self) -> bool:
        """True if the same candidate may be tried again unchanged."""
        return self.cause in AGAIN

    @property
    def lasts_s(self) -> float:
        """Seconds for which the failure counts against the candidate: 0 never, inf until something changes."""
        return LASTS_S.get(self.cause, 0.0) if self.began else 0.0

    def __str__(self) -> str:
        if self.cause is Cause.UNKNOWN:
            return self.summary  # what was observed is all that is known
        rule = f" {self.rule}" if self.rule else ""
        return f"{WORDS[self.cause]}{rule}: {self.summary}"


def classify(failure: Failure, signatures: Sequence[Signature] | None = None) -> Diagnosis:
    """The cause of one rank's failure; if no signature matches, UNKNOWN with the last line that looks like an error."""
    lines = tuple(line[:WIDTH] for line in failure.log[-LINES:])
    known = SIGNATURES.content.signatures if signatures is None else signatures
    if failure.out_of_memory:  # what else it printed, such as a lost connection, follows from that
        known = tuple(one for one in known if one.cause in (Cause.KNOWN, Cause.MEMORY))
    for signature in sorted(known, key=lambda one: list(Cause).index(one.cause)):
        at = _matches(signature, failure, lines)
        if at is not None:
            return Diagnosis(
                cause=signature.cause,
                rule=signature.rule,
                signature=signature.id,
                summary=signature.summary,
                evidence=_trimmed(lines[at]),
            )
    return _by_the_end(failure, lines)


def first_cause(diagnoses: Iterable[Diagnosis]) -> Diagnosis:
    """The diagnosis of a group, of those of its ranks: a lost peer counts only if no rank has a cause for it.

    A last line that sound starts have, too (`ends`), counts only if the other ranks have no cause at all: those of a rank
    that waits for a failed one end with it. Of equal causes the order of the file counts.

    Raises:
        ValueError: there are none.
    """
    order = [cause for cause in Cause if cause is not Cause.UNKNOWN]
    at_end = {one.id for one in SIGNATURES.content.signatures if one.ends}
    in_file = {one.id: at for at, one in enumerate(SIGNATURES.content.signatures)}

    def place(one: Diagnosis) -> tuple[int, int]:
        at = in_file.get(one.signature, len(in_file))
        if one.cause is Cause.UNKNOWN:
            return len(order) + 1, at
        return len(order) if one.signature in at_end else order.index(one.cause), at

    return min(diagnoses, key=place)


_MERE_NOTE = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b|\bIgnore import error\b")
"""A line after which an engine goes on: both engines try optional packages and kernels, and log each that is missing."""


def _matches(signature: Signature, failure: Failure, lines: Sequence[str]) -> int | None:
    if signature.engines and failure.engine not in signature.engines:
        return None
    if signature.methods and failure.method not in signature.methods:
        return None
    if signature.without and (failure.served or _first(signature.without, lines) is not None):
        return None
    begin = max(0, len(lines) - LAST) if signature.ends else 0
    for at in range(begin, len(lines)):
        if signature.cause is Cause.MISSING and _MERE_NOTE.search(lines[at]):
            continue
        if _finds(signature.pattern, lines[at]) and _in_context(signature, lines, at):
            return at
    return None


def _in_context(signature: Signature, lines: Sequence[str], at: int) -> bool:
    return signature.context is None or _first(signature.context, lines[max(0, at - NEAR) : at]) is not None


def _first(pattern: str, lines: Sequence[str]) -> int | None:
    return next((at for at, line in enumerate(lines) if _finds(pattern, line)), None)


def _finds(pattern: str, line: str) -> bool:
    return re.search(pattern, line, re.IGNORECASE) is not None


def _by_the_end(failure: Failure, lines: Sequence[str]) -> Diagnosis:
    """Diagnosis if no signature matches: by memory and exit code, with the last line that looks like an error."""
    low, code = failure.memory_low, failure.exit_code
    if low is not None and low < LOW_BYTES:
        summary = f"The node had only {gib(low, exact=True)} of memory left."
        return Diagnosis(cause=Cause.MEMORY, summary=summary)
    if failure.out_of_memory:
        return Diagnosis(
            cause=Cause.MEMORY, summary="It ended as the kernel killed a process for lack of memory."
        )
    evidence = _looks_like_an_error(lines)
    if code in KILLED:
        summary = "It was killed (SIGKILL), and nothing in its log explains it."
        return Diagnosis(cause=Cause.UNKNOWN, summary=summary, evidence=evidence)
    if code in NOT_RUN:
        return Diagnosis(
            cause=Cause.MISSING, summary=f"Its program cannot be run (exit code {code}).", evidence=evidence
        )
    summary = "It was not ready in time." if code is None else f"It ended with exit code {code}."
    return Diagnosis(cause=Cause.UNKNOWN, summary=summary, evidence=evidence)


_ERROR = re.compile(r"error|exception|fatal|failed|traceback", re.IGNORECASE)


def _looks_like_an_error(lines: Sequence[str]) -> str:
    printed = [line for line in lines if line.strip()]
    errors = [line for line in printed if _ERROR.search(line)]
    return _trimmed((errors or printed or [""])[-1])


def _trimmed(line: str) -> str:
    text = "".join(sign for sign in line if sign.isprintable()).strip()
    return text if len(text) <= EVIDENCE else f"{text[: EVIDENCE - 1]}…"
