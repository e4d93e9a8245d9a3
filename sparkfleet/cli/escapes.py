"""Terminal escapes of text that others wrote: engines, models, nodes, and names in files. On a terminal they would set
its title and its clipboard, erase lines above, or draw lines that no command of ours printed.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sparkfleet.cli.loading import loading
from sparkfleet.runtime.visible_text import visible

__all__ = ["RawOutput", "SafeConsole", "visible"]


class SafeConsole(Console):
    """A console that prints control characters of the text as escapes, and takes no markup and no emoji from it.

    Args:
        stderr: print on standard error.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(file=file, stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, below nothing that only waited for them."""
        loading.erase()
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments to print. Cursor movements and colours are rich's own, and no part of their texts."""
        for one in super().render(renderable, options):
            yield one if one.control else Segment(visible(one.text), one.style)


class RawOutput:
    """Standard output for what an engine or a model wrote: as it is into a file or a pipe, escaped on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        """Write the next bytes; a character may be split between two calls."""
        loading.erase()
        if self._terminal:
            lines = self._decoder.decode(data).replace("\r\n", "\n")
            sys.stdout.write(visible(lines))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        sys.stdout.flush()
