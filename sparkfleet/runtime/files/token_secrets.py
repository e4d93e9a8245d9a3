"""Secrets from which the tokens of engines are derived: the present one, and those of engines that run since before it."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Protocol

from pydantic import Field

from sparkfleet.values import Value

SECRET_BYTES = 32
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


def is_secret(text: str) -> bool:
    """True for a secret as this package writes it: hexadecimal digits."""
    return _SECRET.fullmatch(text) is not None


@lru_cache(maxsize=64)  # the gateway compares marks at each request
def mark_of(secret: str) -> str:
    """Name of a secret that may be shown: eight hexadecimal digits of a hash of its 256 random bits."""
    return hashlib.sha256(b"sparkfleet secret mark\0" + secret.encode()).hexdigest()[:8]


class TokenSecrets(Value):
    """The secrets of one fleet's engine tokens. An engine cannot take another token while it runs."""

    current: str = Field(repr=False)
    """For engines that start now."""
    former: tuple[str, ...] = Field(default=(), repr=False)
    """For engines that started before the last change, the newest first. () if no change is under way."""

    @property
    def every(self) -> tuple[str, ...]:
        """The present one, then the former ones."""
        return (self.current, *self.former)

    @property
    def for_metrics(self) -> str:
        """The one of which every engine takes the metrics token: an engine that starts during a change takes all of them."""
        return self.every[-1]

    def changed(self, new: str) -> TokenSecrets:
        """A change has begun: engines that start now get tokens of `new`."""
        return TokenSecrets(current=new, former=self.every)

    def finished(self) -> TokenSecrets:
        """The change is over: no engine has a former token."""
        return TokenSecrets(current=self.current)

    def named(self, mark: str) -> str | None:
        """The secret with this mark; None if it is not known."""
        return next((secret for secret in self.every if mark_of(secret) == mark), None)

    def text(self) -> str:
        """The file: one secret a line, the present one first."""
        return "".join(f"{secret}\n" for secret in self.every)

    @classmethod
    def parse(cls, text: str) -> TokenSecrets:
        """The content of the file. Raises ValueError if a line is no secret, or there is none."""
        current, *former = text.split() or [""]
        if not all(map(is_secret, (current, *former))):
            raise ValueError(f"a line does not have {2 * SECRET_BYTES} hexadecimal digits")
        return cls(current=current, former=tuple(former))


class ReadsSecrets(Protocol):
    """The fleet's files, see `FleetPaths`."""

    def read_engine_secret(self) -> str:
        """The fleet's first secret."""
        ...

    def read_token_secrets(self) -> TokenSecrets:
        """The stored secrets."""
        ...


class SecretLookup:
    """Finds the secret of an engine by its mark, for the gateway. Reads the files again if one is not known.

    Args:
        paths: the fleet's files.
    """

    def __init__(self, paths: ReadsSecrets) -> None:
        self._paths = paths
        self._first = paths.read_engine_secret()
        self._known = paths.read_token_secrets()

    def __call__(self, mark: object) -> str:
        """The secret with this mark; the present one if it is unknown, as of an engine that has none.

        Raises:
            ControlError: it is unknown, and the files cannot be read.
        """
        if not isinstance(mark, str):
            return self._known.current
        if mark == mark_of(self._first):  # of an engine on a node that no change has reached
            return self._first
        found = self._known.named(mark)
        if found is None:
            self._known = self._paths.read_token_secrets()
            found = self._known.named(mark)
        return found or self._known.current
