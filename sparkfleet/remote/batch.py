"""Runs many commands on a node in one round trip, by `batch_program.py` on the node."""

from __future__ import annotations

import math
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Any

from sparkfleet.errors import NodeError
from sparkfleet.remote.agent import Program, call
from sparkfleet.remote.bounded_output import OUTPUT_BYTES
from sparkfleet.remote.channel import Channel, Completed, not_found

_AT_A_TIME = 16
_STARTING_S = 15.0
"""Seconds for the node's Python to start on a busy node."""
_ROUND_S = 1.0
"""Seconds of overhead of each round of commands beyond their time-out."""

PROGRAM = Program.of("sparkfleet.remote.batch_program", does="run the commands")


async def run_batch(
    channel: Channel, argvs: Sequence[Sequence[str]], *, timeout_s: float = 30.0
) -> list[Completed | NodeError]:
    """Run commands on a node, sixteen at a time, in one round trip. Results are in the order of the commands.

    The result of a program that does not exist, or that does not end within `timeout_s` (it is killed, with its process
    group), is a `NodeError`. Each output is kept up to an equal share of 6 MiB.

    Raises:
        NodeError: the node cannot be reached, or has no Python 3.
    """
    if not argvs:
        return []
    request = {
        "argvs": [list(argv) for argv in argvs],
        "timeout_s": timeout_s,
        "most": _AT_A_TIME,
        "cap": _cap(argvs),
    }
    rounds = math.ceil(len(argvs) / _AT_A_TIME)
    limit_s = _STARTING_S + rounds * (timeout_s + _ROUND_S)
    answers = await call(channel, PROGRAM, request, timeout_s=limit_s)
    if not isinstance(answers, list) or len(answers) != len(argvs):
        raise PROGRAM.no_answer(channel.node, "but returned an invalid answer")
    return [_result(argv, answer, timeout_s) for argv, answer in zip(argvs, answers, strict=True)]


def _cap(argvs: Sequence[Sequence[str]]) -> int:
    """Bytes of each output, so that all of them in base64 fit into what a channel keeps of one."""
    return (OUTPUT_BYTES * 3 // 4 - 4096) // (2 * len(argvs)) - 256


def _result(argv: Sequence[str], answer: Any, timeout_s: float) -> Completed | NodeError:
    program = argv[0] if argv else ""
    match answer:
        case {"exit_code": int(exit_code), "outputs": [out, err]} if not isinstance(exit_code, bool):
            return Completed(argv=tuple(argv), exit_code=exit_code, stdout=_text(out), stderr=_text(err))
        case {"missing": True}:
            return not_found(program)
        case {"late": True}:
            return NodeError(
                f"{program} did not end within {timeout_s:g} s",
                means="It was killed, with its process group.",
            )
        case {"refused": str(reason)} if argv:
            return NodeError(f"{program} cannot be run: {reason}")
        case _:
            return NodeError("the command is empty")


def _text(output: Any) -> str:
    match output:
        case [str(encoded), int(dropped)]:
            try:
                text = b64decode(encoded).decode(errors="replace")
            except Base64Error:
                text, dropped = "", 0
        case _:
            text, dropped = "", 0
    return f"{text}\n[cut: {dropped} more bytes]" if dropped else text
