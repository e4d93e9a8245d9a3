"""Tokens of the controller's API: the present one, and the former ones while the fleet's secrets change."""

from __future__ import annotations

import hmac
from contextlib import suppress
from pathlib import Path

from sparkfleet.runtime.files.token_secrets import SECRET_BYTES, is_secret

Stamp = tuple[int, int, int, int]
"""Inode, size, and times of a file's last change of content and of owner or mode."""


class ApiTokens:
    """Decides if a request has an API token. Follows the files, so that a change needs no restart.

    Args:
        path: file of the token; None: it never changes.
        former: file of the former ones, one a line; None: there are none.
    """

    def __init__(self, token: str, path: Path | None = None, former: Path | None = None) -> None:
        self._current, self._former = token, tuple[str, ...]()
        self._path, self._former_path = path, former
        self._stamp: Stamp | None = None
        self._former_stamp: Stamp | None = None

    @classmethod
    def read(cls, path: Path, former: Path) -> ApiTokens:
        """The tokens in these files. Raises OSError or ValueError if the present one cannot be read, or is none."""
        token = path.read_text().strip()
        if not is_secret(token):
            raise ValueError(f"it does not have {2 * SECRET_BYTES} hexadecimal digits")
        return cls(token, path, former)

    def admits(self, authorization: str) -> bool:
        """True if the header has a token that is accepted now."""
        self._follow()
        given = authorization.encode(errors="surrogateescape")  # as it was sent: a header may have any bytes
        good = [
            hmac.compare_digest(given, f"Bearer {one}".encode()) for one in (self._current, *self._former)
        ]
        return any(good)

    def _follow(self) -> None:
        """Reads files that have changed. One that cannot be used leaves the last token, and is read at the next request.

        A moment without a free descriptor, or with another owner, is no reason to refuse a token for good.
        """
        with suppress(OSError, ValueError):
            if self._path is not None and (stamp := _stamp(self._path)) != self._stamp:
                token = self._path.read_text().strip()
                if is_secret(token):
                    self._current, self._stamp = token, stamp
        try:
            if self._former_path is not None and (stamp := _stamp(self._former_path)) != self._former_stamp:
                self._former = tuple(filter(is_secret, self._former_path.read_text().split()))
                self._former_stamp = stamp
        except (FileNotFoundError, ValueError):
            self._former, self._former_stamp = (), None
        except OSError:
            pass


def _stamp(path: Path) -> Stamp:
    """Stamp of a file. Raises OSError if there is none, or it cannot be reached."""
    info = path.stat()
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
