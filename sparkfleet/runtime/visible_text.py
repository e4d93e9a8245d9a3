"""Makes control characters of text that others wrote visible: engines, models, nodes, and names in files."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and newline, DEL, C1 (of which a terminal takes 0x9b for ESC [), and characters that turn text around."""


def visible(text: str) -> str:
    """`text` with each control character as its escape: `\\x1b`. Tabs and newlines stay."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
