"""A Hub on loopback that behaves as the real one where it matters here, and misbehaves on demand.

`python fake_hub.py HOST DIRECTORY` serves the files of a directory as the model `tests/tiny` and prints its address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class FakeHub:
    """One model. Every GET is noted in `asked` as (path, range, authorization), and every HEAD in `heads`."""

    files: dict[str, bytes]
    name: str = "tests/tiny"
    commit: str = COMMIT
    large_from: int = 100
    page: int = 3
    token: str = ""
    refusal: tuple[int, str] | None = None
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """By path, after how many bytes each of the next answers breaks off."""
    busy: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers of the next answers to anything."""
    served: dict[str, bytes] = field(default_factory=dict)
    """Content that is sent in place of the listed one."""
    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    """By path: half is sent, and the rest when the event is set."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ranges: bool = True
    redirect: str = ""
    chunked: bool = False
    """Answers of the API have no length."""
    padding: int = 0
    """Blanks after the JSON of each answer of the API."""
    xet: str = ""
    """Address of large files in the Hub's answers, by Xet."""
    endless: frozenset[str] = frozenset()
    """Paths that are followed by more bytes than they have."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bytes_sent: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{tail:.*}", self._any)
        return app

    async def _any(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self._note(request)
        right = re.sub(re.escape(self.name), self.name, path, flags=re.IGNORECASE)
        if path != right:  # as the Hub, which ignores case
            return web.Response(status=307, headers={"location": right})
        if self.busy:
            status, headers = self.busy.pop(0)
            return web.Response(status=status, headers=headers)
        if path.startswith("/cdn/"):
            return await self._send(request, path.removeprefix("/cdn/"))
        refused = self._refused(request)
        if refused is not None:
            return refused
        api, files = f"/api/models/{self.name}", f"/{self.name}/resolve/{self.commit}/"
        if path in (f"{api}/revision/main", f"{api}/revision/{self.commit}"):
            return await self._json(request, self._about())
        if path.startswith(f"{api}/revision/"):
            return web.Response(status=404, headers={"x-error-code": "RevisionNotFound"})
        if path == f"{api}/tree/{self.commit}":
            return await self._tree(request)
        if path.startswith(files):
            file = path.removeprefix(files)
            if self.redirect:
                return web.Response(status=302, headers={"location": f"{self.redirect}/cdn/{file}"})
            return await self._send(request, file)
        return web.Response(status=404, headers={"x-error-code": "RepoNotFound"})

    def _note(self, request: web.Request) -> None:
        if request.method == "HEAD":
            self.heads.append(request.path)
            return
        headers = request.headers
        self.asked.append((request.path, headers.get("range", ""), headers.get("authorization", "")))

    def _about(self) -> dict[str, object]:
        siblings = [
            {"rfilename": path, "size": len(content), "blobId": git_sha1(content)}
            for path, content in sorted(self.files.items())
        ]
        return {"id": self.name, "sha": self.commit, "siblings": siblings}

    async def _json(
        self, request: web.Request, value: object, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        body = json.dumps(value).encode() + b" " * self.padding
        answer = web.StreamResponse(headers={"content-type": "application/json", **(headers or {})})
        if self.chunked:
            answer.enable_chunked_encoding()
        else:
            answer.content_length = len(body)
        await answer.prepare(request)
        try:
            for start in range(0, len(body), 1 << 20):
                await answer.write(body[start : start + (1 << 20)])
        except ConnectionError:  # whoever asked has read enough
            pass
        return answer

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.Response(status=401, headers={"x-error-code": "GatedRepo"})
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], headers={"x-error-code": self.refusal[1]})
        return None

    async def _tree(self, request: web.Request) -> web.StreamResponse:
        start = int(request.query.get("cursor", "0"))
        paths = sorted(self.files)
        headers = {}
        if start + self.page < len(paths):
            url = request.url.update_query({"cursor": str(start + self.page)})
            headers["link"] = f'<{url}>; rel="next"'
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "somewhere"}]
        entries += [self._entry(path) for path in paths[start : start + self.page]]
        return await self._json(request, entries, headers)

    def _entry(self, path: str) -> dict[str, object]:
        content = self.files[path]
        entry: dict[str, object] = {
            "type": "file", "oid": git_sha1(content), "size": len(content), "path": path,
        }  # fmt: skip
        if len(content) >= self.large_from:
            entry["lfs"] = {
                "oid": hashlib.sha256(content).hexdigest(),
                "size": len(content),
                "pointerSize": 134,
            }
        return entry

    async def _send(self, request: web.Request, path: str) -> web.StreamResponse:
        content = self.served.get(path, self.files.get(path))
        if content is None:
            return web.Response(status=404, headers={"x-error-code": "EntryNotFound"})
        span = request.headers.get("range", "") if self.ranges else ""
        start, end = _span(span, len(content))
        if start and start >= len(content):
            return web.Response(status=416)
        headers = {"x-repo-commit": self.commit, **self._marks(path)}
        if path not in self.endless:
            headers["content-length"] = str(end - start)
        if span:
            headers["content-range"] = f"bytes {start}-{end - 1}/{len(content)}"
        answer = web.StreamResponse(status=206 if span else 200, headers=headers)
        await answer.prepare(request)
        if request.method != "HEAD":
            await self._body(request, answer, path, content[start:end])
        return answer

    def _marks(self, path: str) -> dict[str, str]:
        """Headers that the real Hub sends with a file."""
        content = self.files.get(path, b"")
        if len(content) < self.large_from:
            return {"etag": f'"{git_sha1(content)}"'}
        digest = hashlib.sha256(content).hexdigest()
        marks = {"etag": f'"{digest}"', "x-linked-etag": f'"{digest}"', "x-linked-size": str(len(content))}
        if self.xet:
            marks |= {
                "x-xet-hash": digest,
                "x-xet-refresh-route": f"{self.xet}/api/models/x/xet-read-token/1",
            }
        return marks

    async def _body(self, request: web.Request, answer: web.StreamResponse, path: str, rest: bytes) -> None:
        if self.cuts.get(path):
            rest = rest[: self.cuts[path].pop(0)]
            await answer.write(rest)
            self.bytes_sent += len(rest)
            assert request.transport is not None
            request.transport.close()
            return
        if path in self.hold:
            await answer.write(rest[: len(rest) // 2])
            self.started.set()
            await self.hold[path].wait()
            rest = rest[len(rest) // 2 :]
        await answer.write(rest)
        self.bytes_sent += len(rest)
        try:
            while path in self.endless:
                await answer.write(b"x" * 100_000)
        except ConnectionError:  # whoever asked has gone
            pass


def _span(text: str, length: int) -> tuple[int, int]:
    """First byte, and the one after the last, of a Range header."""
    start, _, end = text.removeprefix("bytes=").partition("-")
    return int(start or 0), min(int(end) + 1, length) if end else length


async def _serve(host: str, files: dict[str, bytes]) -> None:
    runner = web.AppRunner(FakeHub(files).app())
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    print(f"http://{host}:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    host, directory = sys.argv[1:]
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    content = {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
    asyncio.run(_serve(host, content))


if __name__ == "__main__":
    main()
