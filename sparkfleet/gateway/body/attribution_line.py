"""Zeros in place of the digits that Claude Code changes in the first line of its system prompt. Pure.

Since 2.1.36 that line is `x-anthropic-billing-header: cc_version=2.1.39.c39; cc_entrypoint=cli; cch=56445;`. Its
hash (`cch`) differs in each request and the last part of the version in each session, so no engine finds the prompt in
its KV cache: 60,000 tokens are prefilled again for each step of an agent (waybarrios/vllm-mlx#277: 50 s instead of
3.65 s). vLLM drops the line (vllm-project/vllm#36829), SGLang keeps it (sgl-project/sglang#29169 was closed): the report
of the lost cache (sgl-project/sglang#36877) ends with this line as the cause, and not `cache_control`. The lengths stay,
and so does everything else of the body.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from sparkfleet.gateway.body.request_body import RequestBody

_BEGINNING = b'"x-anthropic-billing-header:'
_LONGEST = 256
"""Bytes of the line with its beginning; what follows is left as it is."""
_MOST = 8
"""Lines that are changed, of one body: Claude Code sends one."""
_END = re.compile(rb'["\\\n]')
_DIGITS = re.compile(rb"(?:\bcch=|\bcc_version=[0-9]+\.[0-9]+\.[0-9]+\.)([0-9A-Za-z]+)")


def without_changing_digits(body: RequestBody) -> RequestBody:
    """The body with zeros for those digits; the body itself if it has no such line.

    Args:
        body: of a request to Anthropic's API: JSON.
    """
    for start, end in list(_spans(body)):
        body = body.replaced(start, end, b"0" * (end - start))
    return body


def _spans(body: RequestBody) -> Iterator[tuple[int, int]]:
    """Begin and end of the digits in the body."""
    found, at, tail = 0, 0, b""
    pieces = [*body, b""]
    for piece, following in itertools.pairwise(pieces):
        # A line that goes on in the next piece is found in this one.
        window = tail + piece
        place = window.find(_BEGINNING)
        while place >= 0 and found < _MOST:
            line = (window + following[:_LONGEST])[place : place + _LONGEST]
            end = _END.search(line, len(_BEGINNING))
            begin = at - len(tail) + place
            for match in _DIGITS.finditer(line, 0, end.start() if end else len(line)):
                yield begin + match.start(1), begin + match.end(1)
            found += 1
            place = window.find(_BEGINNING, place + 1)
        at += len(piece)
        tail = piece[-(len(_BEGINNING) - 1) :]
