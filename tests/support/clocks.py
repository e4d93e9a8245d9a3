"""A clock that tests move by hand."""


class Clock:
    """Seconds of any kind."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
