"""Formats of GGUF weights by their tag, and models by the names of GGUF repositories. Pure."""

from __future__ import annotations

import re

from sparkfleet.specs.model_name import ModelName, model_name

_TAG = r"(?:(?:UD|AD)-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32)"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]*gguf[\w.-]*", re.IGNORECASE)

_FORMATS = (
    (r"mxfp4", "gguf-mxfp4"),
    (r"nvfp4", "q4_0"),
    (r"bf16|f16|f32", "bf16"),
    (r"i?q8", "q8_0"),
    (r"i?q6", "q6_k"),
    (r"i?q5", "q5_k"),
    (r"q4_[01]|iq4_nl", "q4_0"),
    (r"i?q4", "q4_k"),
    (r"i?q3", "q3_k"),
    (r"i?q2|tq2", "q2_k"),
    (r"i?q1|tq1", "iq1"),
)
"""Tags → the format that `physics.yaml` has for their weights; the first match counts."""


def gguf_name(model: str) -> ModelName | None:
    """The parts of a name with a tag, or of a repository that names the format; None for any other model."""
    name = model_name(model)
    return name if name.tag or _REPOSITORY.fullmatch(name.base) else None


def format_of_tag(tag: str) -> str | None:
    """The format of `physics.yaml` in which most weights of such a file are stored; None if the tag names none.

    "UD" and "AD" are makers' mixtures that are named for most of their weights.
    """
    plain = re.sub(r"^(?:ud|ad)-", "", tag.lower())
    return next((name for pattern, name in _FORMATS if re.match(pattern, plain)), None)


def stem_of(repository: str) -> str:
    """The name of the model in that of a repository: without the word GGUF and a tag ("Qwen2.5-Coder-7B-Q8_0-GGUF")."""
    owner, slash, name = repository.rpartition("/")
    name = re.sub(r"(?i)[-_.]gguf\b", "", name)
    name = re.sub(rf"(?i)[-_.]{_TAG}$", "", name)
    return f"{owner}{slash}{name}"
