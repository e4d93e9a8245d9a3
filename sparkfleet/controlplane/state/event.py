"""Events of a fleet."""

from __future__ import annotations

from sparkfleet.values import Value


class Event(Value):
    """Something that happened, with its reason. `at` is Unix seconds; `subject` is a group, a key or ""."""

    id: int
    at: float
    deployment: str
    generation: int
    subject: str
    kind: str
    message: str
