"""The client of the Hub: the real huggingface_hub against a Hub on loopback that fails in all the ways there are."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from aiohttp import web

from sparkfleet.staging import hub as hub_module
from sparkfleet.staging import hub_http
from sparkfleet.staging.errors import (
    ConnectionVariableError,
    HubUnreachable,
    ModelAbsent,
    ModelMiscased,
    ModelNotShown,
    StagingError,
)
from sparkfleet.staging.hub import Hub
from sparkfleet.staging.hub_http import ANSWER_BYTES, HttpTimeouts
from sparkfleet.staging.manifest import File
from sparkfleet.staging.storage_layout import check

MODEL = "tests/tiny"
SHARD = "model-00001-of-00002.safetensors"


class Client:
    """A `Hub` whose calls wait in a thread: the fake Hub runs in the loop of the test."""

    def __init__(self, endpoint: str, name: str = MODEL, **more: object) -> None:
        self._of = lambda: Hub(name, **{"endpoint": endpoint, **more})

    def __getattr__(self, name: str):
        async def call(*arguments):
            return await asyncio.to_thread(lambda: getattr(self._of(), name)(*arguments))

        return call


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[list[float]]:
    """Seconds that would have been waited between tries, in this module and in the library."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return waited


@pytest.fixture
async def asking(hub, serve):
    """asking(token=…) → a client of the fake Hub."""
    endpoint = await serve(hub.app())

    def client(**more: object) -> Client:
        return Client(endpoint, **more)

    return client


async def test_a_manifest_is_pinned_and_has_the_files_of_an_engine(asking, hub, wanted_files):
    manifest = await asking().manifest("main")
    assert manifest.commit == hub.commit
    assert {file.path: file.size for file in manifest.files} == {p: len(c) for p, c in wanted_files.items()}
    by_path = {file.path: file for file in manifest.files}
    assert by_path[SHARD].digest == hashlib.sha256(wanted_files[SHARD]).hexdigest()
    assert by_path["config.json"].algorithm == "git-sha1"


async def test_a_name_in_another_case_has_no_manifest(asking, hub):
    """`models pull` loaded the weights a second time, into a directory that no deployment with the right name reads."""
    with pytest.raises(ModelMiscased, match="Tests/TINY is tests/tiny at ") as refused:
        await asking(name="Tests/TINY").manifest("main")
    assert refused.value.do == "Write tests/tiny."
    assert {path for path, *_ in hub.asked} == {
        f"/api/models/{name}/revision/main" for name in ("Tests/TINY", "tests/tiny")
    }, "no list of files"


async def test_a_manifest_comes_in_chunks_without_a_length(asking, hub, wanted_files):
    hub.chunked = True
    assert len((await asking().manifest("main")).files) == len(wanted_files)


async def test_a_file_comes_whole_and_checks(asking, wanted_files, tmp_path):
    client = asking()
    manifest = await client.manifest("main")
    for file in manifest.files:
        part = tmp_path / "part"
        part.unlink(missing_ok=True)
        await client.get(file, manifest.commit, part)
        assert part.read_bytes() == wanted_files[file.path]
        assert check(part, file)


async def shard(client) -> tuple[File, str]:
    manifest = await client.manifest("main")
    return next(file for file in manifest.files if file.path == SHARD), manifest.commit


def ranges(hub) -> list[str]:
    return [asked[1] for asked in hub.asked if asked[0].endswith(SHARD)]


@pytest.fixture
def small_chunks(monkeypatch):
    """The library keeps what has arrived by pieces of 10 MiB."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)


async def test_an_answer_that_breaks_off_is_continued(asking, hub, wanted_files, tmp_path, small_chunks):
    hub.cuts[SHARD] = [1_000_000, 500_000]
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]
    assert ranges(hub) == ["", "bytes=1000000-", "bytes=1500000-"]
    assert hub.bytes_sent == len(wanted_files[SHARD])


async def test_a_part_of_a_former_run_is_continued(asking, hub, wanted_files, tmp_path):
    (tmp_path / "part").write_bytes(wanted_files[SHARD][:2_000_000])
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]
    assert ranges(hub) == ["bytes=2000000-"]
    assert hub.bytes_sent == len(wanted_files[SHARD]) - 2_000_000


async def test_breaks_are_no_failure_while_bytes_come(asking, hub, tmp_path, small_chunks):
    hub.cuts[SHARD] = [1000] * 20
    client = asking()
    file, commit = await shard(client)
    await client.get(file, commit, tmp_path / "part")
    assert check(tmp_path / "part", file)


async def test_without_progress_a_download_fails_and_keeps_its_bytes(asking, hub, tmp_path, small_chunks):
    hub.cuts[SHARD] = [1000, *[0] * 50]
    client = asking()
    with pytest.raises(HubUnreachable) as given_up:
        await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").stat().st_size == 1000
    assert "kept" in given_up.value.means


async def test_a_hub_without_ranges_begins_again(asking, hub, wanted_files, tmp_path):
    hub.ranges = False
    (tmp_path / "part").write_bytes(b"x" * 1000)
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]


async def test_a_part_that_is_too_long_is_thrown_away(asking, wanted_files, tmp_path):
    (tmp_path / "part").write_bytes(b"x" * 9_000_000)
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]


async def test_a_file_that_is_shorter_than_listed_is_given_up(asking, hub, wanted_files, tmp_path):
    hub.served[SHARD] = wanted_files[SHARD][:1000]
    (tmp_path / "part").write_bytes(b"x" * 2000)
    client = asking()
    with pytest.raises(HubUnreachable):
        await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").stat().st_size <= 1000
    assert len(ranges(hub)) < 20


async def test_more_bytes_than_listed_are_refused(asking, hub, wanted_files, tmp_path):
    hub.served[SHARD] = wanted_files[SHARD] + b"more"
    client = asking()
    with pytest.raises(StagingError, match="sends more"):
        await client.get(*await shard(client), tmp_path / "part")


async def test_a_file_without_an_end_does_not_fill_the_disk(asking, hub, wanted_files, tmp_path):
    hub.endless = frozenset((SHARD,))
    client = asking()
    with pytest.raises(StagingError, match="sends more"):
        await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").stat().st_size <= len(wanted_files[SHARD])


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_answer_is_read_up_to_its_bound_only(asking, hub, chunked):
    # The former client read a chunked answer to its end: its bound was held against the length, which there is none of.
    hub.chunked, hub.padding = chunked, ANSWER_BYTES
    with pytest.raises(StagingError, match="more than 32 MiB"):
        await asking().manifest("main")


async def test_busy_is_tried_again(asking, hub, naps):
    hub.busy = [(503, {}), (500, {})]
    assert (await asking().manifest("main")).commit == hub.commit
    assert naps == [1, 2]


async def test_a_wait_of_hours_is_not_obeyed_but_an_error(asking, hub, naps):
    hub.busy = [(429, {"retry-after": "7200"})]
    with pytest.raises(StagingError, match="7200 s") as refused:
        await asking().manifest("main")
    assert "hf auth login" in refused.value.do
    assert naps == []


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, "GatedRepo"), "is gated"),
        ((403, "GatedRepo"), "is gated"),
        ((403, ""), "is gated"),
        ((401, "RepoNotFound"), "no model tests/tiny, or it is private"),
        ((401, ""), "no model tests/tiny, or it is private"),
        ((404, "RepoNotFound"), "no model tests/tiny, or it is private"),
        ((418, ""), "418"),
    ],
)
async def test_a_refusal_names_its_reason(asking, hub, refusal, words):
    hub.refusal = refusal
    with pytest.raises(StagingError, match=words):
        await asking().manifest("main")


@pytest.mark.parametrize(("status", "kind"), [(401, ModelNotShown), (404, ModelAbsent)])
async def test_the_public_hub_alone_refutes_a_name(asking, hub, monkeypatch, status, kind):
    """A mirror has a part of its models, or answers as a company's proxy does: real names were refused."""
    hub.refusal = (status, "RepoNotFound")
    with pytest.raises(StagingError, match=r"HF_ENDPOINT.* has no model tests/tiny") as refused:
        await asking().manifest("main")
    assert type(refused.value) is StagingError
    assert "https://huggingface.co/tests/tiny" in refused.value.do
    monkeypatch.setattr("sparkfleet.staging.hub_http.PUBLIC_HOSTS", ("127.0.0.1",))
    with pytest.raises(kind, match="the Hub has no model tests/tiny"):
        await asking().manifest("main")


async def test_a_refused_token_is_no_evidence_against_the_name(asking, hub):
    """An expired one is refused for public models, too: real names got "Did you mean …"."""
    hub.refusal = (401, "")
    with pytest.raises(StagingError, match="refuses the token") as refused:
        await asking(token="hf_expired").manifest("main")
    assert not isinstance(refused.value, (ModelAbsent, ModelNotShown))
    assert "new token" in refused.value.do


async def test_a_gated_model_is_an_error_with_its_page_and_the_token(asking, hub):
    hub.token = "secret-token"
    with pytest.raises(StagingError, match="without a token") as refused:
        await asking().manifest("main")
    assert "Accept the licence at http://127.0.0.1" in refused.value.do
    assert "hf auth login" in refused.value.do
    assert (await asking(token="secret-token").manifest("main")).commit == hub.commit


async def test_the_token_is_read_by_the_rules_of_the_library(asking, hub, tmp_path, monkeypatch):
    hub.token = "of-a-file"
    (tmp_path / "token").write_text("of-a-file\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert (await asking().manifest("main")).commit == hub.commit
    hub.token = "of-the-environment"
    monkeypatch.setenv("HF_TOKEN", " of-the-environment\n")
    assert (await asking().manifest("main")).commit == hub.commit


async def test_the_token_is_in_no_message_and_no_log(asking, hub, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    client = asking(token="secret-token")
    file, commit = await shard(client)
    hub.cuts[SHARD] = [0] * 50
    with pytest.raises(HubUnreachable) as failed:
        await client.get(file, commit, tmp_path / "part")
    hub.refusal = (403, "GatedRepo")
    with pytest.raises(StagingError) as refused:
        await client.manifest("main")
    out = capfd.readouterr()
    assert "secret-token" not in f"{failed.value}{refused.value}{caplog.text}{out.out}{out.err}"


async def test_an_unknown_revision(asking):
    with pytest.raises(StagingError, match="no such revision"):
        await asking().manifest("v9")


async def test_the_token_does_not_follow_a_redirect_to_another_origin(asking, hub, serve, tmp_path):
    hub.redirect = await serve(hub.app())
    hub.token = "secret-token"
    client = asking(token="secret-token")
    file, commit = await shard(client)
    await client.get(file, commit, tmp_path / "part")
    at_cdn = [asked for asked in hub.asked if asked[0].startswith("/cdn/")]
    assert at_cdn
    assert all(authorization == "" for _, _, authorization in at_cdn)
    assert check(tmp_path / "part", file)


async def test_a_list_that_continues_elsewhere_gets_no_token(hub, serve):
    elsewhere = await serve(hub.app())
    app = odd_hub(
        {"id": MODEL, "sha": COMMIT},
        listed(),
        link=f'<{elsewhere}/api/models/{MODEL}/tree/{hub.commit}>; rel="next"',
    )
    manifest = await Client(await serve(app), token="secret-token").manifest("main")
    assert len(manifest.files) > 1
    assert [authorization for _, _, authorization in hub.asked] == ["", "", "", ""]


async def test_a_file_that_xet_fails_at_is_downloaded_over_http(asking, hub, wanted_files, tmp_path, serve):
    # There is no Xet service here: the library asks it for its token, is refused, and HTTP brings the same bytes.
    heard: list[str] = []
    hub.xet = await serve(web.Application())
    client = asking(note=heard.append)
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]
    assert len(heard) == 1
    assert "Xet failed" in heard[0]


async def test_a_part_is_continued_over_http_although_xet_has_the_file(asking, hub, wanted_files, tmp_path):
    hub.xet = "http://127.0.0.1:9"
    (tmp_path / "part").write_bytes(wanted_files[SHARD][:1000])
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]
    assert hub.heads == []


@pytest.mark.parametrize("amount", [0, 1000, 4_000_000])
async def test_a_file_of_wrong_size_from_xet_is_downloaded_over_http(
    asking, hub, wanted_files, tmp_path, monkeypatch, amount
):
    def brings(*, incomplete_path, **_):
        incomplete_path.write_bytes(b"x" * amount)

    monkeypatch.setattr(hub_module, "xet_get", brings)
    hub.xet = "http://127.0.0.1:9"
    client = asking()
    await client.get(*await shard(client), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]


async def test_more_than_50_gb_need_xet(asking, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 2_000_000)
    client = asking()
    with pytest.raises(StagingError, match="by Xet only"):
        await client.get(*await shard(client), tmp_path / "part")


async def test_a_hub_that_is_not_there():
    with pytest.raises(HubUnreachable) as away:
        await Client("http://127.0.0.1:9").manifest("main")
    assert away.value.what.startswith("http://127.0.0.1:9 is not reachable: ")
    assert "refused" in away.value.what


async def test_a_hub_that_never_answers_is_given_up(serve):
    async def silent(_):
        await asyncio.sleep(60)

    app = web.Application()
    app.router.add_get("/{tail:.*}", silent)
    with pytest.raises(HubUnreachable):
        await Client(await serve(app), timeouts=HttpTimeouts(connect_s=1, read_s=0.2)).manifest("main")


async def test_offline_the_hub_is_not_queried(asking, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StagingError, match="HF_HUB_OFFLINE is set"):
        await asking().manifest("main")
    assert hub.asked == []


async def test_the_start_of_a_file_is_all_that_is_read(asking, hub, wanted_files):
    content = wanted_files[SHARD]
    assert await asking().start_of(SHARD, hub.commit, 1000) == content[:1000]
    assert ranges(hub) == ["bytes=0-999"]
    hub.ranges, hub.endless = False, frozenset((SHARD,))
    assert await asking().start_of(SHARD, hub.commit, 1000) == content[:1000]
    assert await asking().start_of("config.json", hub.commit, 1000) == wanted_files["config.json"]


COMMIT = "1" * 40


def odd_hub(revision, tree=None, link=""):
    """A Hub that answers with what it is given."""
    app = web.Application()

    async def about(_):
        return web.json_response(revision) if not isinstance(revision, str) else web.Response(text=revision)

    async def files(_):
        return web.json_response(tree, headers={"link": link} if link else {})

    app.router.add_get("/api/models/tests/tiny/revision/main", about)
    app.router.add_get(f"/api/models/tests/tiny/tree/{COMMIT}", files)
    return app


def listed(**entry):
    return [{"type": "file", "path": "config.json", "size": 1, "oid": "a" * 40, **entry}]


@pytest.mark.parametrize(
    ("revision", "tree"),
    [
        ("<html>", None),
        ([], None),
        ({"sha": "../../x"}, None),
        ({"id": MODEL, "sha": COMMIT}, {"error": 1}),
        ({"id": MODEL, "sha": COMMIT}, []),
        ({"id": MODEL, "sha": COMMIT}, listed(path="../../etc/config.json")),
        ({"id": MODEL, "sha": COMMIT}, listed(size=-1)),
        ({"id": MODEL, "sha": COMMIT}, listed(size="1")),
        ({"id": MODEL, "sha": COMMIT}, listed(oid="../x")),
        ({"id": MODEL, "sha": COMMIT}, listed(lfs={"oid": "x", "size": 1, "pointerSize": 1})),
        ({"id": MODEL, "sha": COMMIT}, listed(lfs={})),
        ({"id": MODEL, "sha": COMMIT}, [None, 1, "x"]),
        ({"id": MODEL, "sha": COMMIT}, listed(path=1)),
        ({"id": MODEL, "sha": COMMIT}, listed() + listed(path="a" * 2000 + ".json")),
    ],
)
async def test_answers_that_no_hub_gives_are_errors_in_words(serve, revision, tree):
    with pytest.raises(StagingError):
        await Client(await serve(odd_hub(revision, tree))).manifest("main")


def large(*paths):
    lfs = {"oid": "b" * 64, "size": 9, "pointerSize": 1}
    return [entry for path in paths for entry in listed(path=path, lfs=lfs)]


@pytest.mark.parametrize(
    "path", ["LICENSE (1).txt", "README_中文.md", "docs/how to run.md", "quick start.py", "a[1]*.bin"]
)
async def test_a_file_that_no_engine_loads_may_have_any_name(serve, path):
    """One of them made the whole model unstageable, with the advice to look for a proxy."""
    tree = listed() + large("model.safetensors", path)
    notes = []
    client = Client(await serve(odd_hub({"id": MODEL, "sha": COMMIT}, tree)), note=notes.append)
    found = await client.manifest("main")
    assert [file.path for file in found.files] == ["config.json", "model.safetensors"]
    assert len(notes) == (not path.endswith(".bin")), "bin is a second copy of the weights"


@pytest.mark.parametrize("path", ["model (1).safetensors", "generation config.json", "tokenizer ü.model"])
async def test_a_file_that_an_engine_may_load_has_a_plain_name(serve, path):
    client = Client(
        await serve(odd_hub({"id": MODEL, "sha": COMMIT}, listed() + large("m.safetensors", path)))
    )
    with pytest.raises(StagingError, match="staging accepts letters") as refused:
        await client.manifest("main")
    assert "HF_ENDPOINT" not in str(refused.value)
    assert "--local-dir" in refused.value.do


@pytest.mark.parametrize("path", ["/etc/x.md", "a//b.md", "a\nb.md"])
async def test_a_path_that_leads_elsewhere_is_refused_for_every_file(serve, path):
    client = Client(await serve(odd_hub({"id": MODEL, "sha": COMMIT}, large("m.safetensors", path))))
    with pytest.raises(StagingError, match="invalid form"):
        await client.manifest("main")


async def test_a_path_through_a_parent_is_not_taken(serve):
    tree = large("m.safetensors", "../README.md", "a/../../b.txt")
    client = Client(await serve(odd_hub({"id": MODEL, "sha": COMMIT}, tree)))
    assert [file.path for file in (await client.manifest("main")).files] == ["m.safetensors"]


async def test_the_password_of_a_mirror_is_in_no_message(serve):
    hub = Hub("org/model", endpoint="https://ci:hunter2@127.0.0.1:9/hub/")
    for act in (lambda: hub.commit("main"), lambda: hub.start_of("x", COMMIT, 1)):
        with pytest.raises(HubUnreachable) as refused:
            await asyncio.to_thread(act)
        assert "hunter2" not in str(refused.value)
        assert "https://127.0.0.1:9/hub " in refused.value.what


@pytest.mark.parametrize("endpoint", ["ftp://x", "huggingface.co", "http://"])
def test_an_invalid_endpoint(endpoint, monkeypatch):
    with pytest.raises(ConnectionVariableError, match="HF_ENDPOINT"):
        Hub(MODEL, endpoint=endpoint)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ConnectionVariableError, match="HF_ENDPOINT"):
        Hub(MODEL)


def test_a_mirror_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror/hf/")
    assert hub_module.Hub(MODEL).endpoint == "http://mirror/hf"


@pytest.mark.parametrize(
    ("endpoint", "sent"),
    [
        ("https://hub.example", True),
        ("http://127.0.0.1:9", True),
        ("http://localhost:9", True),
        ("http://hub.example", False),
        ("http://10.0.0.9:8080", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_a_token_is_sent_by_https_or_to_this_machine_only(endpoint, sent):
    request = httpx2.Request("GET", f"{endpoint}/api/models/x", headers={"authorization": "Bearer secret"})
    hub_http._Guard(urlsplit(endpoint), hub_http.HttpTimeouts()).before(request)
    assert ("authorization" in request.headers) is sent


def test_the_error_says_that_a_token_was_kept_back(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    assert "https only" in hub_module.Hub(MODEL, token="secret")._errors._with_token()
