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
_MOST_LINES = 8
"""Lines that are read, of one body: Claude Code sends one."""
_MOST = 16
"""Digits that are changed, of one body: Claude Code sends two of them."""
_OVERLAP = len(_BEGINNING) - 1
_END = re.compile(rb'["\\\n]')
_DIGITS = re.compile(rb"(?:\bcch=|\bcc_version=[0-9]+\.[0-9]+\.[0-9]+\.)([0-9A-Za-z]+)")


def without_changing_digits(body: RequestBody) -> RequestBody:
    """The body with zeros for those digits; the body itself if it has no such line.

    Args:
        body: of a request to Anthropic's API: JSON.
    """
    spans = list(itertools.islice(_spans(body), _MOST))
    return body.replaced(*[(start, end, b"0" * (end - start)) for start, end in spans]) if spans else body


def _spans(body: RequestBody) -> Iterator[tuple[int, int]]:
    """Begin and end of the digits in the body."""
    for begin, line in itertools.islice(_lines(body), _MOST_LINES):
        end = _END.search(line, len(_BEGINNING))
        for match in _DIGITS.finditer(line, 0, end.start() if end else len(line)):
            yield begin + match.start(1), begin + match.end(1)


def _lines(body: RequestBody) -> Iterator[tuple[int, bytes]]:
    """Place and first bytes of each such line. Copies nothing but these."""
    at, tail = 0, b""
    for piece, following in itertools.pairwise([*body, b""]):
        # A line that goes on in the next piece is found in this one.
        place = (tail + piece[:_OVERLAP]).find(_BEGINNING)
        if place >= 0:
            yield at - len(tail) + place, (tail[place:] + piece[:_LONGEST])[:_LONGEST]
        place = piece.find(_BEGINNING)
        while place >= 0:
            line = piece[place : place + _LONGEST]
            yield at + place, line + following[: _LONGEST - len(line)]
            place = piece.find(_BEGINNING, place + 1)
        at += len(piece)
        tail = piece[-_OVERLAP:]
