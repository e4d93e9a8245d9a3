"""The Hub over HTTP: what a repository holds at a revision, and its files, resumed where they were cut."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from pydantic import ValidationError

from sparkfleet.facts.untrusted import shown
from sparkfleet.staging.errors import StagingError, Unreachable
from sparkfleet.staging.manifest import MAX_FILES, File, Manifest, by_path
from sparkfleet.staging.place import size_of
from sparkfleet.staging.select import wanted

PUBLIC = "https://huggingface.co"
CHUNK_BYTES = 1 << 20
ANSWER_BYTES = 32 << 20
"""A page of a file list has 1000 entries of about 300 bytes."""
TRIES = 6
"""In a row without a single new byte; any byte starts the count again."""
FIRST_TRIES = 3
"""The same of a Hub that has not answered yet: more likely there is no way to it than that it is busy."""
LONGEST_WAIT_S = 300.0
"""Longest Retry-After that is obeyed; whoever asks for more gets an error that says so."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60)
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_TRANSIENT = frozenset((408, 429, 500, 502, 503, 504))


class _Again(Exception):
    """This did not work, and may the next time, after `wait_s`. `moved`: something arrived before it broke."""

    def __init__(self, reason: str, wait_s: float | None = None, moved: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.moved = moved


class Hub:
    """One repository at one Hub. Use as an asynchronous context manager.

    Args:
        name: Hub id of the model.
        endpoint: address of the Hub, such as `https://huggingface.co`.
        token: what proves who asks, or "". It goes to that endpoint only, never to where it redirects.
        backoff_s: the first wait after something transient; it doubles.
    """

    def __init__(self, name: str, *, endpoint: str = PUBLIC, token: str = "", backoff_s: float = 1.0) -> None:
        self.name = name
        self.endpoint = _checked(endpoint)
        self._token = token
        self._backoff_s = backoff_s
        self._answered = False
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=_TIMEOUT,
            headers={"accept-encoding": "identity", "user-agent": "sparkfleet"},
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def manifest(self, revision: str) -> Manifest:
        """What an engine needs of a revision, pinned to its commit.

        Raises:
            StagingError: there is no such model or revision, it is gated, or the answer is not understood.
            Unreachable: the Hub does not answer.
        """
        about = f"{self.endpoint}/api/models/{quote(self.name)}/revision/{quote(revision, safe='')}"
        found, _ = await self._json(about)
        commit = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self._odd(f"names {shown(commit)} as its commit")
        files = {file.path: file async for file in self._tree(commit)}
        chosen = [files[path] for path in wanted(files)]
        if not chosen:
            raise StagingError(
                f"{self.name} at {revision} holds no file that an engine could load.",
                do="Check the model's name.",
            )
        return Manifest(kind="hub", name=self.name, commit=commit, files=by_path(chosen))

    async def get(self, file: File, commit: str, part: Path) -> None:
        """Make `part` grow to the whole file, from what is there.

        Raises:
            StagingError: the Hub refuses, or what it sends is longer than it said.
            Unreachable: it does not answer, several times in a row.
        """
        url = f"{self.endpoint}/{quote(self.name)}/resolve/{commit}/{quote(file.path)}"
        failures = 0
        while (have := size_of(part)) is None or have != file.size:
            if have is not None and have > file.size:
                part.unlink()
                continue
            try:
                await self._more(url, file, part, have or 0)
            except _Again as again:
                failures = 0 if again.moved else failures + 1
                await self._pause(again, failures)

    async def _more(self, url: str, file: File, part: Path, start: int) -> None:
        headers = {"range": f"bytes={start}-"} if start else {}
        moved = False
        async with self._answer(url, headers) as answer:
            if answer.status == 416:
                part.unlink(missing_ok=True)
                raise _Again("it does not know the range that is missing")
            resumed = answer.status == 206 and _starts_at(answer) == start
            left = file.size - start if resumed else file.size
            with part.open("ab" if resumed else "wb") as out:
                try:
                    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                        left -= len(chunk)
                        if left < 0:
                            raise self._odd(f"sends more of {file.path} than the {file.size} bytes it has")
                        out.write(chunk)
                        moved = True
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    raise _Again(_short(error), moved=moved) from error
        if left:
            raise _Again("the answer ended early", moved=moved)

    async def _tree(self, commit: str) -> AsyncIterator[File]:
        url: str | None = f"{self.endpoint}/api/models/{quote(self.name)}/tree/{commit}?recursive=true"
        count = 0
        while url is not None:
            entries, url = await self._json(url)
            if not isinstance(entries, list):
                raise self._odd("does not list its files")
            for entry in entries:
                count += 1
                if count > MAX_FILES:
                    raise self._odd(f"lists more than {MAX_FILES} files")
                if isinstance(entry, dict) and entry.get("type") == "file":
                    file = self._file(entry)
                    if file is not None:
                        yield file

    def _file(self, entry: Mapping[str, Any]) -> File | None:
        path = entry.get("path")
        if not isinstance(path, str) or path not in wanted([path]):
            return None  # pictures may be named as they like
        large = entry.get("lfs")
        try:
            if isinstance(large, dict):
                return File(path=path, size=large["size"], digest=large["oid"])
            return File(path=path, size=entry["size"], digest=entry["oid"], algorithm="git-sha1")
        except (ValidationError, KeyError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"no {error}"
            raise self._odd(f"describes {shown(path)} in a way that is not understood ({reason})") from error

    async def _json(self, url: str) -> tuple[Any, str | None]:
        """A JSON answer, and the address of its next page."""
        failures = 0
        while True:
            try:
                async with self._answer(url, {}) as answer:
                    body = await _whole(answer)
                    following = answer.links["next"].get("url") if "next" in answer.links else None
                return json.loads(body), self._same_hub(following)
            except ValueError as error:
                raise self._odd("does not answer in JSON") from error
            except _Again as again:
                failures += 1
                await self._pause(again, failures)
            except (aiohttp.ClientError, TimeoutError) as error:
                failures += 1
                await self._pause(_Again(_short(error)), failures)

    def _same_hub(self, following: object) -> str | None:
        """The next page, which must not lead to somebody else: the token goes along."""
        if following is None:
            return None
        url = urljoin(self.endpoint, str(following))
        if urlsplit(url)[:2] != urlsplit(self.endpoint)[:2]:
            raise self._odd("continues its list of files elsewhere")
        return url

    @asynccontextmanager
    async def _answer(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        # aiohttp drops this header where a redirect leads to another origin.
        proof = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = await self._session.get(url, headers={**headers, **proof}, max_redirects=5)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _Again(_short(error)) from error
        self._answered = True
        async with answer:
            if answer.status in _TRANSIENT:
                raise _Again(f"it answers {answer.status}", _retry_after(answer))
            if answer.status not in (200, 206, 416):
                raise self._refused(answer)
            yield answer

    async def _pause(self, again: _Again, failures: int) -> None:
        if failures >= FIRST_TRIES and not self._answered:
            raise Unreachable(
                f"{self.endpoint} does not answer: {again} ({failures} times in a row).",
                means=f"Whether it has {self.name} is not known, and nothing of it was downloaded now.",
                do="Check this node's way to the internet, or set HF_ENDPOINT to a mirror that it reaches.",
            )
        if failures >= TRIES:
            raise Unreachable(
                f"{self.endpoint} does not serve {self.name}: {again} ({failures} times in a row).",
                means="What has arrived is kept; the next run goes on from there.",
                do="Check this node's way to the internet, or set HF_ENDPOINT to a mirror that it reaches.",
            )
        wait_s = again.wait_s if again.wait_s is not None else self._backoff_s * 2 ** max(failures - 1, 0)
        if wait_s > LONGEST_WAIT_S:
            raise StagingError(
                f"{self.endpoint} asks to wait {wait_s:.0f} s before the next request.",
                means="Its limit for this address or token is used up; what has arrived is kept.",
                do="Run it again later, or with HF_TOKEN: those who log in have a higher limit.",
            )
        await asyncio.sleep(wait_s)

    def _refused(self, answer: aiohttp.ClientResponse) -> StagingError:
        code = answer.headers.get("x-error-code", "")
        page = f"{self.endpoint}/{self.name}"
        if code == "GatedRepo" or (answer.status == 403 and code != "RepoNotFound"):
            asked = "with this token" if self._token else "without a token"
            return StagingError(
                f"{self.name} is gated, and the Hub does not give it {asked} ({answer.status}).",
                means="Its owner wants to know who downloads it.",
                do=f"Accept its terms at {page}, then run this with HF_TOKEN set to a token of that account.",
            )
        if code == "RevisionNotFound":
            return StagingError(
                f"{self.name} has no such revision.", do=f"See {page}/commits for what there is."
            )
        if code == "EntryNotFound":
            return StagingError(
                f"{self.name}: a file of its own list is not there.",
                means="The repository was changed while it was read.",
                do="Run it again.",
            )
        if answer.status in (401, 404):
            return StagingError(
                f"the Hub has no model {self.name}, or it is private ({answer.status}).",
                do=f"Check the name at {page}; for a private model set HF_TOKEN"
                f"{' to a token that may read it' if self._token else ''}.",
            )
        return StagingError(f"{self.endpoint} refuses {self.name}: {answer.status} {shown(answer.reason)}.")

    def _odd(self, what: str) -> StagingError:
        return StagingError(
            f"{self.endpoint}: {self.name} {what}.",
            means="This does not behave as the Hub does.",
            do="Check HF_ENDPOINT, and whether a proxy stands between.",
        )


def endpoint_of(environment: Mapping[str, str]) -> str:
    """HF_ENDPOINT, or the public Hub."""
    return environment.get("HF_ENDPOINT") or PUBLIC


def token_of(environment: Mapping[str, str], home: Path) -> str:
    """The token of this user: HF_TOKEN, or what `hf auth login` has written; "" where there is none."""
    if environment.get("HF_TOKEN"):
        return environment["HF_TOKEN"].strip()
    base = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    try:
        return Path(environment.get("HF_TOKEN_PATH") or base / "token").read_text().strip()[:512]
    except (OSError, UnicodeDecodeError):
        return ""


def _checked(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StagingError(
            f"HF_ENDPOINT is {shown(endpoint)}, which is no address of a Hub.",
            do="Give one such as https://huggingface.co.",
        )
    return endpoint.rstrip("/")


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """The body, whether or not its length is declared. Raises ValueError if it is longer than any answer of a Hub."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise ValueError(f"longer than {ANSWER_BYTES} bytes")
    return bytes(body)


def _starts_at(answer: aiohttp.ClientResponse) -> int | None:
    found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    return int(found[1]) if found else None


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def _short(error: Exception) -> str:
    """Why there is no connection, in the operating system's words; else whatever the error says."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
    return shown(str(error) or type(error).__name__)
