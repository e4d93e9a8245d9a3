"""`sparkfleet knowledge status`, against a package index and a Hub on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from sparkfleet.fleet.knowledge.status import PartStatus, knowledge_status
from sparkfleet.fleet.knowledge.upstream_news import (
    NotReached,
    hub_news,
    index_url,
    newest_known,
    newest_release,
)
from sparkfleet.knowledge.parts import KnowledgePart, first_day, knowledge_parts

TODAY = date(2026, 11, 23)
PARTS = {
    "images", "speculators", "models", "checkpoints", "architectures", "methods", "advisories", "rules",
    "measurements", "factors", "hardware", "recipes", "ggufs",
}  # fmt: skip


class Upstream:
    """An HTTP server that has pages by path, and notes who asked for what."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str, str]] = {}
        """Path → status, content type, text."""
        self.asked: list[str] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                upstream.asked.append(path)
                status, kind, text = upstream.pages.get(path, (404, "application/json", "{}"))
                self.send_response(status)
                self.send_header("content-type", kind)
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def lists(self, package: str, *files: str, yanked: tuple[str, ...] = ()) -> None:
        listed = [{"filename": name, "yanked": name in yanked} for name in files]
        page = json.dumps({"meta": {"api-version": "1.1"}, "files": listed})
        self.pages[f"/simple/{package}/"] = (200, "application/vnd.pypi.simple.v1+json", page)

    def has(self, model: str, changed: str) -> None:
        page = json.dumps({"id": model, "sha": "0" * 40, "lastModified": f"{changed}T10:00:00.000Z"})
        self.pages[f"/api/models/{model}"] = (200, "application/json", page)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server = Upstream()
    yield server
    server.close()


def closed_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


def by_id(found: tuple[PartStatus, ...]) -> dict[str, PartStatus]:
    return {one.part.id: one for one in found}


def test_every_part_has_entries_and_all_but_the_fit_a_date() -> None:
    parts = {part.id: part for part in knowledge_parts()}
    assert set(parts) == PARTS
    assert all(part.entries > 0 for part in parts.values())
    assert {name for name, part in parts.items() if part.newest is None} <= {"factors"}


def test_age_counts_from_the_first_day_of_what_is_known_and_is_never_negative() -> None:
    part = KnowledgePart(id="x", file="x.yaml", entries=1, newest="2026-10", fresh_days=45, do="add")
    assert part.age_days(TODAY) == 53
    assert part.is_old(TODAY)
    assert not part.is_old(date(2026, 11, 15))  # 45 days: not yet
    assert part.age_days(date(2026, 9, 1)) == 0
    assert first_day("2026") == date(2026, 1, 1)


def test_the_newest_release_is_neither_a_candidate_nor_yanked(upstream: Upstream) -> None:
    upstream.lists(
        "vllm", "vllm-0.9.2-py3-none-any.whl", "vllm-0.33.0.tar.gz", "vllm-0.34.0rc1-py3-none-any.whl",
        "vllm-0.35.0.tar.gz", "not a package.exe", yanked=("vllm-0.35.0.tar.gz",),
    )  # fmt: skip
    index = f"{upstream.address}/simple"
    assert newest_release(index, "vllm") == "0.33.0"
    assert newest_release(index, "vllm", candidates=True) == "0.34.0rc1"


def test_an_index_that_has_pages_of_html_only(upstream: Upstream) -> None:
    page = (
        '<html><a href="x/vllm-0.32.0.tar.gz#sha256=0">vllm-0.32.0.tar.gz</a>'
        '<a data-yanked="" href="x">vllm-0.33.0.tar.gz</a></html>'
    )
    upstream.pages["/simple/vllm/"] = (200, "text/html; charset=utf-8", page)
    assert newest_release(f"{upstream.address}/simple", "vllm") == "0.32.0"


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ((503, "text/html", "busy"), "127.0.0.1 answers 503"),
        ((200, "application/json", "{"), "not a page of a package index"),
        ((200, "application/json", '["vllm"]'), "not a page of a package index"),
        ((200, "text/html", "<html>log in first</html>"), "lists no release of vllm"),
    ],
)
def test_an_answer_that_is_no_such_page_is_not_taken_for_current(
    upstream: Upstream, page: tuple[int, str, str], reason: str
) -> None:
    upstream.pages["/simple/vllm/"] = page
    with pytest.raises(NotReached, match=reason):
        newest_release(f"{upstream.address}/simple", "vllm")


def test_credentials_of_an_index_are_not_in_the_reason() -> None:
    index = closed_port().replace("http://", "http://user:hunter2@") + "/simple"
    with pytest.raises(NotReached) as error:
        newest_release(index, "vllm", wait_s=1)
    assert "127.0.0.1" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_the_index_is_the_one_that_pip_is_configured_with(tmp_path) -> None:  # type: ignore[no-untyped-def]
    weak, strong, broken = tmp_path / "weak", tmp_path / "strong", tmp_path / "broken"
    weak.write_text("[global]\nindex-url = https://weak.example/simple/\n")
    strong.write_text("[global]\nindex-url = https://strong.example/simple\n")
    broken.write_text("index-url = https://broken.example\n")
    assert index_url({"PIP_INDEX_URL": "https://set.example/simple/"}, [weak]) == "https://set.example/simple"
    assert index_url({}, [weak, strong, broken]) == "https://strong.example/simple"
    assert index_url({}, [broken, tmp_path / "none"]) == "https://pypi.org/simple"


def test_known_versions_are_ordered_as_releases() -> None:
    assert str(newest_known(["0.9.0", "0.28.0", "0.5.12 re-tag", None, "0.33.0.dev1", "nightly"])) == "0.28.0"
    assert newest_known([None, "nightly"]) is None
    assert str(newest_known(["b11206", None, "b11459"])) == "11459"


def test_repositories_that_changed_after_their_entry(upstream: Upstream) -> None:
    upstream.has("a/new", "2026-11-23")
    upstream.has("a/same-day", "2026-11-22")
    upstream.pages["/api/models/a/odd"] = (200, "application/json", "[]")
    asked = dict.fromkeys(("a/same-day", "a/new", "a/gone", "a/odd"), "2026-11-22")
    news = hub_news(asked, endpoint=upstream.address)
    assert (news.changed, news.missing, news.unanswered) == (("a/new",), ("a/gone",), 1)


def test_what_is_newer_is_named_with_what_is_known(upstream: Upstream) -> None:
    upstream.lists("vllm", "vllm-99.1.0.tar.gz")
    upstream.lists("sglang", "sglang-0.0.1.tar.gz")
    found = by_id(knowledge_status(TODAY, index=f"{upstream.address}/simple", hub=upstream.address))
    images = found["images"]
    assert images.upstream == "newer"
    assert images.news[0].startswith("vLLM 99.1.0 is out; newest image known: 0.")
    assert not any("SGLang" in line for line in images.news)
    assert any(line.startswith("upstream not reached: TensorRT-LLM") for line in images.news)
    assert any(line.startswith("vLLM 99.1.0 is out") for line in found["architectures"].news)
    assert found["checkpoints"].upstream == "newer"  # none of them is on that Hub
    assert "not on the Hub" in found["checkpoints"].news[0]
    assert found["rules"].upstream == "not asked"


def test_offline_asks_nobody(upstream: Upstream) -> None:
    index = f"{upstream.address}/simple"
    found = knowledge_status(TODAY, offline=True, index=index, hub=upstream.address)
    assert {one.upstream for one in found} == {"not asked"}
    assert upstream.asked == []


def test_without_a_network_every_age_is_there_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    gone = closed_port()
    found = by_id(knowledge_status(TODAY, index=f"{gone}/simple", hub=gone, wait_s=1))
    for part in ("images", "architectures", "checkpoints", "speculators"):
        assert found[part].upstream == "not reached"
        assert found[part].news[0].startswith("upstream not reached: ")
    assert found["images"].age_days is not None
