"""Code that a checkpoint brings: an engine runs it only with `trust_remote_code: true`, and of one commit. Pure.

Not a check of the model `Deployment`, so that a deployment that an older release stored stays readable: the loader of
files calls it, and the planner, which plans stored deployments again.

A directory needs no commit. Nothing that sparkfleet does changes what is in it, and a user who can write there can already
run programs as the fleet's user. A branch of the Hub changes whenever its owner, or a thief of their token, pushes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparkfleet.specs.deployment import Deployment, Variant
from sparkfleet.specs.fields import Problem, Where
from sparkfleet.specs.model_name import base_name

FLAG = "--trust-remote-code"
SETTINGS_FILES = ("--config", "--extra-llm-api-options")
"""Flags of a file with further settings, which only the engine reads: vLLM's, SGLang's and TensorRT-LLM's."""
OTHER_SOURCES = (
    "--tokenizer",
    "--tokenizer-path",
    "--hf-config-path",
    "--code-revision",
    "--tokenizer-revision",
)
"""Flags that name another repository or commit, whose code the engine would run as well."""
OWN_DRAFT = "--spec"
"""Beginning of the flags by which arguments name a draft (`--speculative-config`, `--spec-model`)."""

_COMMIT = re.compile(r"[^@]+@[0-9a-f]{40}")
_INSIDE = re.compile(r"trust[-_]remote[-_]code", re.IGNORECASE)
"""The setting in any spelling, and as a key in JSON (`--mm-processor-kwargs`, `--speculative-config`)."""
_FIELD = "set `trust_remote_code: true`, which requires `model: ORG/NAME@COMMIT`"


class CodeRisk(NamedTuple):
    """A way in which code of a checkpoint would run that nobody has pinned."""

    field: str
    reason: str
    remedy: str


def code_risks(variant: Variant) -> Iterator[CodeRisk]:
    """Ways in which a variant could run code of a checkpoint other than `trust_remote_code` with a commit."""
    if variant.engine == "custom":  # its command is its own
        if variant.trust_remote_code:
            yield CodeRisk("trust_remote_code", "a custom workload has its own command", "leave it out")
        return
    yield from _by_arguments(variant)
    if variant.trust_remote_code:
        yield from _of(variant.model, "model")
        if variant.speculation.draft is not None:
            yield from _of(variant.speculation.draft, "speculation")
        yield from _from_elsewhere(variant.engine_args)
    else:
        yield from _by_settings_file(variant.engine_args)


def is_pinned(model: str) -> bool:
    """True if the code of a checkpoint cannot change unnoticed: a commit of the Hub, a directory, or built in."""
    return model.startswith(("/", "builtin:")) or _COMMIT.fullmatch(model) is not None


def code_problems(deployment: Deployment) -> Iterator[Problem]:
    """The same of every variant of a deployment file, with their places in it."""
    for index, variant in enumerate(deployment.resolved()):
        for risk in code_risks(variant):
            yield Problem(
                _place(deployment, index, risk.field), f"{risk.reason}. To change it: {risk.remedy}."
            )


def _place(deployment: Deployment, index: int, field: str) -> Where:
    own = deployment.variants and getattr(deployment.variants[index], field) is not None
    return ("variants", index, field) if own else (field,)


def _by_arguments(variant: Variant) -> Iterator[CodeRisk]:
    if any(_INSIDE.search(word) or _begins(word, FLAG) for word in variant.engine_args):
        reason = f"{FLAG} runs whatever code the checkpoint has when it is downloaded"
        yield CodeRisk("engine_args", reason, f"leave it out; if the model needs it, {_FIELD}")
    for name in variant.env:
        if _INSIDE.search(name):
            yield CodeRisk("env", f"{name} lets code of the checkpoint run", f"leave it out, and {_FIELD}")


def _by_settings_file(args: tuple[str, ...]) -> Iterator[CodeRisk]:
    for flag in SETTINGS_FILES:
        if any(_begins(word, flag) for word in args):
            reason = f"{flag} names a file of settings that sparkfleet does not read: it can let code of the checkpoint run"
            yield CodeRisk("engine_args", reason, f"give the settings as arguments, or {_FIELD}")


def _of(model: str, field: str) -> Iterator[CodeRisk]:
    name = base_name(model)
    if model.startswith("builtin:"):
        yield CodeRisk("trust_remote_code", f"{model} has no code", "leave it out")
    elif not is_pinned(model):
        reason = f"`trust_remote_code: true` runs code of {model}, which its owner can change after you have read it"
        key = "model" if field == "model" else "draft"
        remedy = (
            f"`{key}: {name}@COMMIT`, with the 40 hex digits of the commit that you have read "
            f"(`git ls-remote https://huggingface.co/{name} HEAD` prints the newest)"
        )
        yield CodeRisk(field, reason, remedy)


def _from_elsewhere(args: tuple[str, ...]) -> Iterator[CodeRisk]:
    for word in args:
        flag = word.partition("=")[0].replace("_", "-")
        if flag in OTHER_SOURCES or flag.startswith(OWN_DRAFT):
            reason = f"with `trust_remote_code: true`, {flag} lets code of another checkpoint run that is not pinned"
            yield CodeRisk(
                "engine_args", reason, "leave it out; `speculation: {method: …, draft: …}` names a draft"
            )


def _begins(word: str, flag: str) -> bool:
    """True if an engine may read `word` as `flag`: argparse completes a beginning of it, and `_` is `-`."""
    given = word.partition("=")[0].replace("_", "-")
    return len(given) > len("--") and flag.startswith(given) and given.startswith("--")
