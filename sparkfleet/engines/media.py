"""Hosts from which an engine may fetch images, video and sound. The gateway refuses all others first. Pure."""

from __future__ import annotations

from sparkfleet.planner.types.plan import Candidate

NO_HOST = "none.invalid"
"""A host that cannot exist (RFC 6761): vLLM and SGLang treat an empty list of allowed hosts as all hosts."""


def allowed_domains(candidate: Candidate) -> tuple[str, ...]:
    """The deployment's hosts, or one that cannot exist."""
    return candidate.media_domains or (NO_HOST,)
