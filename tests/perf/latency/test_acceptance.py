"""Tokens per speculative step."""

from __future__ import annotations

from sparkfleet.perf.latency.acceptance import tokens_per_step


def test_expected_tokens() -> None:
    assert tokens_per_step(0.0, 5) == 1.0
    assert tokens_per_step(0.5, 1) == 1.5
    assert tokens_per_step(0.5, 2) == 1.75
