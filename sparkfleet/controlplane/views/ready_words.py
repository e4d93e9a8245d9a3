"""Words about a start that has ended: the event, its parts beside the predicted ones, and its duration read back. Pure."""

from __future__ import annotations

import re

from sparkfleet.group.measured_rate import unknown_rate_words
from sparkfleet.group.report import GroupReport
from sparkfleet.planner.capacity.start_time import predicted_start
from sparkfleet.planner.types.plan import Rung
from sparkfleet.units import duration_words, rough_duration

STARTED = "started in"
CHAT_TEMPLATE_FLAGS = {"trtllm": "--chat_template", "llama.cpp": "--chat-template-file"}
"""Flags that name a file with a chat template, of engines that do not call it `--chat-template`."""
_STARTED = re.compile(rf"{STARTED} (\d+(?:\.\d+)?) s\b")


def ready_words(report: GroupReport, rung: Rung | None) -> str:
    """The event of a group that serves: `started in 212.3 s (engine 41 s, …); measured TTFT 24 ms, …`.

    Args:
        report: of the group.
        rung: of its plan; None if the group is of another plan.
    """
    seconds = f"{report.started_s or 0:.1f} s"
    if report.unused:
        words = f"ready after {seconds}; its engine was started ahead of it"
    else:
        words = f"{'adopted, ready after' if report.adopted else STARTED} {seconds}"
    if parts := start_words(report, rung):
        words += f" ({parts})"
    if speed := speed_words(report):
        words += f"; measured {speed}"
    if report.unchecked:
        words += f"; not checked: {', '.join(report.unchecked)}"
    if report.chat_refusal:
        words += f"; {chat_words(report)}"
    if report.rung:
        words += f"; at rung {report.rung + 1} of its ladder"
    return words


def chat_words(report: GroupReport) -> str:
    """A refused chat, its meaning and the remedy: `answers no chats: HTTP 400: …`. Not for a group that answered one."""
    flag = CHAT_TEMPLATE_FLAGS.get(report.engine, "--chat-template")
    return (
        f"answers no chats: {report.chat_refusal.rstrip('.')}. Only /v1/completions serves. A base model has no"
        f" chat template; for any other one name a file that its engine can read among `engine_args`: [{flag}, FILE]"
    )


def started_s_of(message: str) -> float | None:
    """Seconds in the event of a start; None for any other event, an adopted engine's included."""
    found = _STARTED.match(message)
    return float(found[1]) if found else None


def start_words(report: GroupReport, rung: Rung | None) -> str:
    """`engine 41 s, weights 1 min 30 s, …; predicted 2 min to 6 min without checks`; "" if its log showed no phase."""
    parts = [
        f"{name} {duration_words(seconds)}" for name, seconds in report.start_times.items() if seconds >= 1
    ]
    if not parts:
        return ""
    found = predicted_start(rung.candidate, rung.prediction.weights_bytes) if rung else None
    if found is None:
        return ", ".join(parts)
    band = f"{rough_duration(found.later.low)} to {rough_duration(found.first.high)}"
    return f"{', '.join(parts)}; predicted {band} without checks"


def speed_words(report: GroupReport) -> str:
    """`TTFT 24 ms, 17.3 tok/s for one user (3 streams, 4% apart)`; "" if it was not measured."""
    measured = report.measured
    if "ttft_ms" in measured and (unknown := unknown_rate_words(measured)):
        return f"TTFT {measured['ttft_ms']:.0f} ms, {unknown}"
    if not {"ttft_ms", "decode_tps"} <= measured.keys():
        return ""
    runs, spread = measured.get("measured_runs", 1), measured.get("decode_tps_spread", 0.0)
    among = f" ({runs:.0f} streams, {spread:.0%} apart)" if runs > 1 else ""
    return f"TTFT {measured['ttft_ms']:.0f} ms, {measured['decode_tps']:.1f} tok/s for one user{among}"
