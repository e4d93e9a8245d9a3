"""Facts about all figures of one source, beside its rows: `knowledge/measurements/harnesses.yaml`."""

from __future__ import annotations

from sparkfleet.knowledge.data_file import DataFile
from sparkfleet.perf.workload import Content, Window
from sparkfleet.values import Value


class Harness(Value):
    """Facts about all figures of one source; None: the rows have them."""

    source: str
    """`owner/repo`, or the host of a page."""
    words: str = ""
    """A word in the notes of the rows for which this is true; "": for all."""
    nodes: int = 1
    """Fewest nodes of the runs for which this is true."""
    window: Window | None = None
    content: Content | None = None
    """Kind of text in the requests."""
    requests: int | None = None
    """Number of requests in all."""
    depth_cached: bool | None = None
    """The tokens before the prompt are in the cache."""
    cached_from: int | None = None
    """Requests at once from which prompts repeat earlier ones, so that a prefix cache has them: no measure of a prefill."""
    eager: bool = False
    """The engine runs without CUDA graphs."""


class Harnesses(Value):
    """Contents of the file, in the order to try."""

    harnesses: tuple[Harness, ...]


HARNESSES = DataFile("measurements/harnesses.yaml", Harnesses)


def harness_of(source: str, nodes: int, notes: str) -> Harness:
    """Facts about a source's figures with this number of nodes and these notes."""
    found = (
        one
        for one in HARNESSES.content.harnesses
        if one.source == source and nodes >= one.nodes and one.words in notes
    )
    return next(found, Harness(source=source))
