"""Flags of the engines that set the same as a field of a deployment."""

from __future__ import annotations

SIZES = {
    "--max-model-len": "context",
    "--context-length": "context",
    "--max-seq-len": "context",
    "--max-num-seqs": "concurrency",
    "--max-running-requests": "concurrency",
    "--max-batch-size": "concurrency",
}
"""Flags of a size, with its field."""

DEGREES = {
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--tp-size": "tp",
    "--tp": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--pp-size": "pp",
    "--expert-parallel-size": "ep",
    "--moe-expert-parallel-size": "ep",
    "--ep-size": "ep",
    "--ep": "ep",
    "--decode-context-parallel-size": "dcp",
    "-dcp": "dcp",
    "--dcp-size": "dcp",
}
"""Flags of a degree of parallelism, with its field in `parallel`."""

_FIELDS = {
    **{flag: f"{field}: …" for flag, field in SIZES.items()},
    **{flag: f"parallel: {{{degree}: …}}" for flag, degree in DEGREES.items()},
    "--served-model-name": "name: …",
    "--speculative-config": "speculation: {method: …, tokens: …}",
}


def field_of(flag: str) -> str | None:
    """The field that sets the same as a flag, as it is written in a file; None if there is none. Dashes may be missing."""
    return _FIELDS.get(f"--{flag.lstrip('-').replace('_', '-')}")
