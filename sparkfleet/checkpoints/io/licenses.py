"""Licence of a checkpoint, and its class: open source, other or unknown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from sparkfleet.checkpoints.io.safe_io import present, read_start
from sparkfleet.values import Value

READ_LIMIT = 1 << 16
"""Bytes of a model card or licence that are read."""

LicenseClass = Literal["open-source", "other", "unknown"]

OPEN_SOURCE = frozenset(
    {
        "apache-2.0",
        "mit",
        "bsd",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsd-3-clause-clear",
        "isc",
        "0bsd",
        "zlib",
        "unlicense",
        "bsl-1.0",
        "mpl-2.0",
        "epl-2.0",
        "eupl-1.1",
        "eupl-1.2",
        "artistic-2.0",
        "postgresql",
        "ncsa",
        "osl-3.0",
        "ecl-2.0",
        "ms-pl",
        "gpl",
        "gpl-2.0",
        "gpl-3.0",
        "lgpl",
        "lgpl-2.1",
        "lgpl-3.0",
        "agpl-3.0",
        "cc0-1.0",
        "cc-by-4.0",
        "cc-by-sa-4.0",
    }
)
"""The Hub's licence ids that the Open Source Initiative approves, or (for works that are not programs) Creative Commons
calls free-culture. Licences that restrict fields or users, such as `llama3.1`, `gemma` or `nvidia-open-model-license`,
are "other"."""

MARKS: tuple[tuple[str, str], ...] = (
    ("modified mit license", "modified-mit"),
    ("nvidia open model license", "nvidia-open-model-license"),
    ("llama 4 community license", "llama4"),
    ("llama 3.3 community license", "llama3.3"),
    ("llama 3.2 community license", "llama3.2"),
    ("llama 3.1 community license", "llama3.1"),
    ("meta llama 3 community license", "llama3"),
    ("gemma terms of use", "gemma"),
    ("qwen research license", "qwen-research"),
    ("qwen license agreement", "qwen"),
    ("tongyi qianwen license", "tongyi-qianwen"),
    ("mistral ai research license", "mrl"),
    ("deepseek license agreement", "deepseek"),
    ("apache license version 2.0", "apache-2.0"),
    ("gnu affero general public license version 3", "agpl-3.0"),
    ("gnu lesser general public license version 3", "lgpl-3.0"),
    ("gnu general public license version 3", "gpl-3.0"),
    ("mozilla public license version 2.0", "mpl-2.0"),
    ("bsd 3-clause license", "bsd-3-clause"),
    ("mit license", "mit"),
)
"""First words of licences, in lower case and single spaces; a title that contains another comes before it."""

TITLE_CHARACTERS = 400
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING")

_FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
_ID = re.compile(r"[\w.+-]{1,64}", re.ASCII)


class License(Value):
    """`id` is the Hub's name for it, or the author's own; "" if nothing was found."""

    id: str = ""
    kind: LicenseClass = "unknown"
    source: str = ""
    """The file it was read from."""


def read_license(directory: Path) -> License:
    """Reads the licence from the model card's front matter, or else from the first words of a licence file."""
    card = directory / "README.md"
    named = license_in_card(_text(card)) if present(card) else ""
    if named:
        return License(id=named, kind=license_class(named), source=card.name)
    for name in LICENSE_FILES:
        path = directory / name
        if present(path):
            found = license_in_text(_text(path))
            return License(id=found, kind=license_class(found), source=path.name)
    return License()


def license_class(name: str) -> LicenseClass:
    """Open source, other (a licence that restricts), or unknown (none was named)."""
    if name in ("", "unknown"):
        return "unknown"
    return "open-source" if name in OPEN_SOURCE else "other"


def license_in_card(card: str) -> str:
    """The licence id in the front matter of a model card; the author's own name for one that the Hub does not know."""
    named, own = front_value(card, "license"), front_value(card, "license_name")
    return own if own and named in ("", "other", "unknown") else named


def license_in_text(text: str) -> str:
    """The licence that a text begins with; "" if it is not a known one."""
    title = " ".join(re.sub(r"[^a-z0-9.\- ]", " ", text[: 4 * TITLE_CHARACTERS].lower()).split())[
        :TITLE_CHARACTERS
    ]
    return next((name for mark, name in MARKS if mark in title), "")


def front_value(card: str, key: str) -> str:
    """The value of a key in a model card's front matter, or the first entry of its list; "" if there is none.

    Only this much YAML: model cards are often broken.
    """
    front = _FRONT_MATTER.match(card)
    if front is None:
        return ""
    found = re.search(rf"^{key}:[ \t]*(?:\n[ \t]*-[ \t]*)?(.*)$", front[1], re.MULTILINE)
    value = found[1].strip().strip("[]").partition(",")[0].strip().strip("'\"").lower() if found else ""
    return value if _ID.fullmatch(value) else ""


def _text(path: Path) -> str:
    return read_start(path, READ_LIMIT).decode("utf-8", errors="replace")
