"""Place of the model's name in a JSON body, so that an alias is replaced without decoding the rest. Pure."""

from __future__ import annotations

import json
import re

_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},:]', re.DOTALL)


def model_span(body: bytes | bytearray) -> tuple[int, int] | None:
    """Begin and end of the value of the outermost "model", quotes included; None if it has none, or no text.

    Args:
        body: a JSON object that has been parsed: it is not checked again.
    """
    depth, is_key, wanted = 0, False, False
    for match in _TOKENS.finditer(body):
        start, end = match.span()
        mark = body[start]
        if mark == 0x22:  # a text
            if wanted:
                return start, end
            if depth == 1 and is_key:
                wanted = _is_model(bytes(body[start:end]))
                is_key = False
        elif mark in b"[{":
            depth += 1
            is_key = depth == 1 and mark == 0x7B
            wanted = False
        elif mark in b"]}":
            depth -= 1
        elif mark == 0x2C and depth == 1:  # a comma
            is_key, wanted = True, False
    return None


def _is_model(text: bytes) -> bool:
    return text == b'"model"' or (b"\\" in text and len(text) < 64 and json.loads(text) == "model")
