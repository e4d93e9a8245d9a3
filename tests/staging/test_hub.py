"""The client of the Hub, against a Hub on loopback that breaks in all the ways there are."""

from __future__ import annotations

import hashlib

import pytest
from aiohttp import web

from sparkfleet.staging.errors import StagingError, Unreachable
from sparkfleet.staging.hub import FIRST_TRIES, Hub, endpoint_of, token_of
from sparkfleet.staging.manifest import File
from sparkfleet.staging.place import check

MODEL = "tests/tiny"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
async def asking(hub, serve):
    """asking(token=…) → a client of the fake Hub."""
    endpoint = await serve(hub.app())

    def client(name: str = MODEL, **more: object) -> Hub:
        return Hub(name, **{"endpoint": endpoint, "backoff_s": 0.001, **more})

    return client


async def test_a_manifest_is_pinned_and_has_what_an_engine_needs(asking, hub, wanted_files):
    async with asking() as client:
        manifest = await client.manifest("main")
    assert manifest.commit == hub.commit
    assert {file.path: file.size for file in manifest.files} == {p: len(c) for p, c in wanted_files.items()}
    by_path = {file.path: file for file in manifest.files}
    assert by_path[SHARD].digest == hashlib.sha256(wanted_files[SHARD]).hexdigest()
    assert by_path["config.json"].algorithm == "git-sha1"


async def test_a_file_comes_whole_and_checks(asking, wanted_files, tmp_path):
    async with asking() as client:
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


async def test_a_cut_answer_is_gone_on_with(asking, hub, wanted_files, tmp_path):
    hub.cuts[SHARD] = [1_000_000, 500_000, 1]
    async with asking() as client:
        file, commit = await shard(client)
        await client.get(file, commit, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]
    ranges = [asked[1] for asked in hub.asked if asked[0].endswith(SHARD)]
    assert ranges == ["", "bytes=1000000-", "bytes=1500000-", "bytes=1500001-"]
    assert hub.bytes_sent == len(wanted_files[SHARD])


async def test_answers_that_break_off_again_and_again_are_no_failure_while_bytes_come(asking, hub, tmp_path):
    hub.cuts[SHARD] = [1000] * 20
    async with asking() as client:
        file, commit = await shard(client)
        await client.get(file, commit, tmp_path / "part")
    assert check(tmp_path / "part", file)


async def test_without_any_byte_it_gives_up_and_keeps_what_is_there(asking, hub, tmp_path):
    hub.cuts[SHARD] = [1000, *[0] * 20]
    async with asking() as client:
        file, commit = await shard(client)
        with pytest.raises(Unreachable, match="in a row") as given_up:
            await client.get(file, commit, tmp_path / "part")
    assert (tmp_path / "part").stat().st_size == 1000
    assert "kept" in given_up.value.means


async def test_a_hub_without_ranges_begins_again(asking, hub, wanted_files, tmp_path):
    hub.ranges = False
    (tmp_path / "part").write_bytes(b"x" * 1000)
    async with asking() as client:
        file, commit = await shard(client)
        await client.get(file, commit, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]


async def test_a_part_that_is_too_long_is_thrown_away(asking, wanted_files, tmp_path):
    (tmp_path / "part").write_bytes(b"x" * 9_000_000)
    async with asking() as client:
        file, commit = await shard(client)
        await client.get(file, commit, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == wanted_files[SHARD]


async def test_more_bytes_than_listed_are_refused(asking, hub, wanted_files, tmp_path):
    hub.served[SHARD] = wanted_files[SHARD] + b"more"
    async with asking() as client:
        file, commit = await shard(client)
        with pytest.raises(StagingError, match="sends more"):
            await client.get(file, commit, tmp_path / "part")


async def test_busy_is_waited_for_as_long_as_it_says(asking, hub, monkeypatch):
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("sparkfleet.staging.hub.asyncio.sleep", sleep)
    hub.busy = [(429, {"retry-after": "7"}), (503, {}), (500, {})]
    async with asking() as client:
        await client.manifest("main")
    assert waited == [7.0, 0.002, 0.004]


async def test_a_wait_of_hours_is_not_obeyed_but_said(asking, hub):
    hub.busy = [(429, {"retry-after": "7200"})]
    async with asking() as client:
        with pytest.raises(StagingError, match="7200 s") as refused:
            await client.manifest("main")
    assert "HF_TOKEN" in refused.value.do


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, "GatedRepo"), "is gated"),
        ((403, "GatedRepo"), "is gated"),
        ((403, ""), "is gated"),
        ((401, "RepoNotFound"), "no model tests/tiny, or it is private"),
        ((404, "RepoNotFound"), "no model tests/tiny, or it is private"),
        ((418, ""), "418"),
    ],
)
async def test_a_refusal_says_what_it_is(asking, hub, refusal, words):
    hub.refusal = refusal
    async with asking() as client:
        with pytest.raises(StagingError, match=words):
            await client.manifest("main")


async def test_gated_says_where_to_accept_and_what_to_set(asking, hub):
    hub.token = "secret-token"
    async with asking(token="") as client:
        with pytest.raises(StagingError, match="without a token") as refused:
            await client.manifest("main")
    assert "Accept its terms" in refused.value.do
    assert "HF_TOKEN" in refused.value.do
    async with asking(token="secret-token") as client:
        assert (await client.manifest("main")).commit == hub.commit


async def test_an_unknown_revision(asking):
    async with asking() as client:
        with pytest.raises(StagingError, match="no such revision"):
            await client.manifest("v9")


async def test_the_token_does_not_follow_a_redirect_to_another_origin(asking, hub, serve, tmp_path):
    hub.redirect = await serve(hub.app())
    hub.token = "secret-token"
    async with asking(token="secret-token") as client:
        file, commit = await shard(client)
        await client.get(file, commit, tmp_path / "part")
    at_cdn = [asked for asked in hub.asked if asked[0].startswith("/cdn/")]
    assert at_cdn
    assert all(authorization == "" for _, _, authorization in at_cdn)
    assert check(tmp_path / "part", file)


async def test_a_hub_that_is_not_there():
    async with Hub(MODEL, endpoint="http://127.0.0.1:9", backoff_s=0.001) as client:
        with pytest.raises(Unreachable) as away:
            await client.manifest("main")
    assert away.value.what.startswith("http://127.0.0.1:9 does not answer: no connection (")
    assert away.value.what.endswith(f"({FIRST_TRIES} times in a row).")
    assert f"Whether it has {MODEL} is not known" in away.value.means


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
        ({"sha": COMMIT}, {"error": 1}),
        ({"sha": COMMIT}, []),
        ({"sha": COMMIT}, listed(path="../../etc/config.json")),
        ({"sha": COMMIT}, listed(size=-1)),
        ({"sha": COMMIT}, listed(size="1")),
        ({"sha": COMMIT}, listed(oid="../x")),
        ({"sha": COMMIT}, listed(lfs={"oid": "x", "size": 1})),
        ({"sha": COMMIT}, listed(lfs={})),
        ({"sha": COMMIT}, [None, 1, "x"]),
        ({"sha": COMMIT}, listed() + listed(path="a" * 2000 + ".json")),
    ],
)
async def test_answers_that_no_hub_gives_are_errors_in_words(serve, revision, tree):
    async with Hub(MODEL, endpoint=await serve(odd_hub(revision, tree)), backoff_s=0.001) as client:
        with pytest.raises(StagingError):
            await client.manifest("main")


async def test_a_list_that_goes_on_elsewhere_is_not_followed(serve):
    app = odd_hub({"sha": COMMIT}, listed(), link='<http://127.0.0.2:1/x>; rel="next"')
    async with Hub(MODEL, endpoint=await serve(app), backoff_s=0.001) as client:
        with pytest.raises(StagingError, match="elsewhere"):
            await client.manifest("main")


def test_endpoint_and_token_come_from_the_environment(tmp_path):
    assert endpoint_of({}) == "https://huggingface.co"
    assert endpoint_of({"HF_ENDPOINT": "http://mirror"}) == "http://mirror"
    assert token_of({"HF_TOKEN": " t \n"}, tmp_path) == "t"
    assert token_of({}, tmp_path) == ""
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("from-login\n")
    assert token_of({}, tmp_path) == "from-login"


@pytest.mark.parametrize("endpoint", ["ftp://x", "huggingface.co", "", "http://"])
def test_an_endpoint_that_is_none(endpoint):
    with pytest.raises(StagingError, match="HF_ENDPOINT"):
        Hub(MODEL, endpoint=endpoint)
