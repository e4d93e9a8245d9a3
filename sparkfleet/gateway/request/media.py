"""URLs in a request from which an engine would fetch images, video, sound or files. Pure.

vLLM and SGLang fetch `http:`, `https:` and, if allowed, `file:`; SGLang also opens a path without a scheme. So
everything in a field for URLs that is not a `data:` URL counts, and in a field for content everything that looks like a URL
or ends as a file of media does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

_URL_FIELDS = ("image_url", "video_url", "audio_url", "file_url")
"""Fields of parts of OpenAI's chat and responses, and vLLM's: a URL, or an object with a field `url`."""
_CONTENT_FIELDS = (
    "image",
    "video",
    "audio",
    "input_audio",
    "input_image",
    "input_video",
    "image_pil",
    "file",
)
"""Fields with the content itself (base64), or with a URL, or an object with one."""
_FIELDS = frozenset((*_URL_FIELDS, *_CONTENT_FIELDS, "data_format", "source"))
_DATA_FIELDS = ("url", "data", "file_data", "file_url", "image_url", "path")
"""Fields of such an object that an engine might open; not its name or its format."""
_LIKE_A_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_LIKE_A_FILE = re.compile(
    r"\.(png|jpe?g|gif|webp|bmp|tiff?|avif|heic|svg|mp4|m4v|mov|avi|mkv|webm|wav|mp3|flac|ogg|opus|m4a|aac|pdf)\s*",
    re.IGNORECASE,
)
_LONGEST_URL = 8192
_MOST_HOSTS = 100
_ODD = re.compile(r"[\\\s\x00-\x1f@]")
"""Characters that parsers of URLs take for different things; a URL with one is refused."""


def may_name_media(part: dict[str, Any]) -> bool:
    """True if a part of a message has a field that `media_urls` reads: most have none."""
    return not _FIELDS.isdisjoint(part)


def media_urls(part: dict[str, Any]) -> Iterator[str]:
    """The URLs and paths of one part of a message, without `data:` URLs."""
    for name in _URL_FIELDS:
        for url in _texts(part.get(name)):
            if not _is_data(url):
                yield url
    for name in _CONTENT_FIELDS:
        value = part.get(name)
        for field, text in _contents(value):
            if _is_remote(text, is_url=field == "url"):
                yield text
    if part.get("data_format") in ("url", "path"):  # vLLM's plugins for /v1/pooling
        yield from (url for url in _texts(part.get("data")) if not _is_data(url))
    source = part.get("source")  # Anthropic's; as a text it only names where a search result comes from
    if isinstance(source, dict):
        yield from (url for url in _texts(source) if not _is_data(url))


def refused_url(urls: Iterable[str], domains: Collection[str]) -> str:
    """The first URL whose host is not among `domains`; "" without one."""
    return next((url for url in urls if not host_of(url) or host_of(url) not in domains), "")


def one_per_host(urls: Iterable[str]) -> tuple[str, ...]:
    """The first URL of each host, which decides like all of them. One without a host covers what is not listed."""
    found: dict[str, str] = {}
    for url in urls:
        found.setdefault(host_of(url), url if len(url) <= _LONGEST_URL else "…" + url[:_LONGEST_URL])
        if len(found) > _MOST_HOSTS:
            return (*found.values(), f"more than {_MOST_HOSTS} hosts")
    return tuple(found.values())


def host_of(url: str) -> str:
    """Host of an http or https URL, in lower case; "" for everything else, and for one that can be read in two ways."""
    if len(url) > _LONGEST_URL:
        return ""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    return "" if parts.scheme not in ("http", "https") or _ODD.search(url) else host


def _texts(value: object) -> Iterator[str]:
    """A field's text, or that of its `url`; of a list, those of its elements."""
    for one in value if isinstance(value, list) else [value]:
        given = one.get("url") if isinstance(one, dict) else one
        if isinstance(given, str):
            yield given


def _contents(value: object) -> Iterator[tuple[str, str]]:
    """A field's texts, each with the name that it has in an object, "" outside of one; of a list, those of its elements."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            yield "", one
        elif isinstance(one, dict):
            for name in _DATA_FIELDS:
                yield from ((name, text) for text in _texts(one.get(name)))


def _is_remote(text: str, *, is_url: bool) -> bool:
    if _is_data(text):
        return False
    return is_url or _LIKE_A_URL.match(text) is not None or _LIKE_A_FILE.search(text[-16:]) is not None


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"
