from types import SimpleNamespace

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.fleet import rank_logs as module
from sparkfleet.fleet.rank_logs import LoggedRank, StoredLog, newest_rank, rank_log, read_log
from sparkfleet.fleet.session import Session
from sparkfleet.group.report import GroupReport, RankReport
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.files.ranklog import RankLog


@pytest.fixture
async def channel():
    local = LocalChannel("here")
    yield local
    await local.close()


@pytest.mark.parametrize(
    ("tail", "shown"),
    [(0, b""), (2, b"two\nthree\n"), (100, b"one\ntwo\nthree\n")],
    ids=["none", "two", "all"],
)
async def test_the_last_lines(channel, tmp_path, tail, shown):
    (tmp_path / "log").write_text("one\ntwo\nthree\n")
    assert [piece async for piece in read_log(channel, str(tmp_path / "log"), tail=tail, follow=False)] == [
        shown
    ]


async def test_a_followed_log_that_grows_and_is_rotated(channel, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLLOW_S", 0.0)
    monkeypatch.setattr(module, "CHUNK", 4)
    log = tmp_path / "log"
    log.write_text("old line\n")
    pieces = read_log(channel, str(log), tail=1, follow=True)
    assert await anext(pieces) == b"old line\n"
    assert await anext(pieces) == b""
    with log.open("a") as file:
        file.write("new line\n")
    assert await anext(pieces) == b"new line\n"
    log.write_text("again\n")
    assert await anext(pieces) == b"again\n"
    await pieces.aclose()


@pytest.fixture
def rotating(tmp_path):
    """A log that is rotated after 20 bytes."""
    log = RankLog(str(tmp_path / "log"), file_bytes=20)
    yield log
    log.close()


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        (1, b"line 5\n"),
        (4, b"line 2\nline 3\nline 4\nline 5\n"),
        (100, b"".join(b"line %d\n" % i for i in range(6))),
    ],
    ids=["newest file", "two files", "all"],
)
async def test_the_last_lines_of_a_log_that_was_rotated(channel, rotating, tmp_path, tail, shown):
    """They were those of the newest file, often one or two."""
    for i in range(6):
        rotating.write(b"line %d\n" % i)
    assert (tmp_path / "log.2").exists()
    assert [piece async for piece in read_log(channel, str(tmp_path / "log"), tail=tail, follow=False)] == [
        shown
    ]


async def test_what_was_written_before_a_rotation_is_followed_too(channel, rotating, tmp_path, monkeypatch):
    """Lines between the last look and the rotation were lost."""
    monkeypatch.setattr(module, "FOLLOW_S", 0.0)
    rotating.write(b"line 0\n")
    pieces = read_log(channel, str(tmp_path / "log"), tail=1, follow=True)
    assert await anext(pieces) == b"line 0\n"
    rotating.write(b"line 1\n")
    rotating.write(b"new\n")
    rotating.write(b"x\n")
    rotating.write(b"y\n")
    assert (tmp_path / "log.1").read_bytes() == b"line 0\nline 1\nnew\nx\n"
    assert await anext(pieces) == b"line 1\nnew\nx\ny\n"
    await pieces.aclose()


async def test_a_log_that_somebody_emptied_has_nothing_of_its_older_file(channel, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLLOW_S", 0.0)
    (tmp_path / "log.1").write_text("of long ago, and longer than the log is\n")
    (tmp_path / "log").write_text("one line\n")
    pieces = read_log(channel, str(tmp_path / "log"), tail=1, follow=True)
    assert await anext(pieces) == b"one line\n"
    (tmp_path / "log").write_text("again\n")
    assert await anext(pieces) == b"again\n"
    await pieces.aclose()


async def test_a_name_that_no_node_has_logs_of(tmp_path, monkeypatch):
    """With a second node in the inventory it ended with a traceback."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))
    file = tmp_path / "inventory.yaml"
    key = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    file.write_text(
        "fleet: home\nhead: a\nnodes:\n  a: {address: local}\n"
        f'  b: {{address: 127.0.0.1, port: 1, user: u, host_key: "{key}"}}\n'
    )
    async with Session(file) as session:
        with pytest.raises(ControlError, match='There is no deployment "tiny"') as raised:
            _ = [piece async for piece in rank_log(session, LoggedRank("tiny"))]
    assert raised.value.do == "None is known: `sparkfleet apply FILE` starts one."


def group(generation, *ranks, replica=0):
    return GroupReport.model_construct(
        generation=generation,
        replica=replica,
        ranks=tuple(RankReport.model_construct(rank=rank, node="n", log_path=path) for rank, path in ranks),
    )


def test_the_newest_generation_with_a_log_counts():
    groups = (
        group(1, (0, "/old")),
        group(2, (0, "/new"), (1, "/one")),
        group(3, (0, "")),
        group(9, (0, "/b"), replica=1),
    )
    assert newest_rank(groups, "tiny", 0, 0).log_path == "/new"
    assert newest_rank(groups, "tiny", 0, 1).log_path == "/one"
    assert newest_rank(groups, "tiny", 1, 0).log_path == "/b"
    assert newest_rank(groups, "tiny", 0, 0, generation=1).log_path == "/old"
    with pytest.raises(ControlError, match="tiny has no log yet for rank 2 of replica 0") as raised:
        newest_rank(groups, "tiny", 0, 2)
    assert raised.value.do == (
        "Groups with a log: tiny/g1/0, tiny/g2/0, tiny/g9/1. `sparkfleet logs tiny/g1/0` prints one."
    )


class Client:
    """A controller whose deployment has these groups; None: it has no deployment."""

    def __init__(self, *groups):
        self.groups = groups

    def again(self):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def fleet(self):
        one = None if self.groups == (None,) else SimpleNamespace(name="tiny", groups=self.groups)
        return SimpleNamespace(named=lambda name: one)


async def test_a_followed_log_goes_on_with_that_of_the_next_generation_and_ends_with_the_deployment():
    """`logs -f` showed "stopped" for ever: the group that replaced it writes another file."""
    found = StoredLog("n", "/old", 1, 1)
    log_now = module._log_now
    either = LoggedRank("tiny")
    old, new, other = group(1, (0, "/old"), replica=1), group(2, (0, "/new"), replica=1), group(9, (0, "/b"))
    assert await log_now(Client(old, other), either, found) == found
    assert (await log_now(Client(new, other), either, found)).path == "/new"
    assert await log_now(Client(other), either, found) == found, "another replica is not its successor"
    assert await log_now(Client(None), either, found) is None
    named = LoggedRank("tiny", 1, 1)
    assert await log_now(Client(old, new), named, found) == found
    assert await log_now(Client(new), named, found) is None


def test_the_first_replica_that_is_left_counts_if_none_is_named():
    """After `scale` to fewer replicas: `sparkfleet logs tiny` found no log, because there was no replica 0."""
    groups = (group(10, (0, "/c"), replica=2), group(5, (0, "/a"), replica=1), group(9, (0, "/b"), replica=1))
    assert newest_rank(groups, "tiny", None, 0).log_path == "/b"
    assert newest_rank(groups, "tiny", 1, 0, generation=5).log_path == "/a"
    with pytest.raises(ControlError, match=r"rank 0 of tiny/g6/1\."):
        newest_rank(groups, "tiny", 1, 0, generation=6)
    with pytest.raises(ControlError, match=r"has no log yet for rank 1\.") as raised:
        newest_rank((), "tiny", None, 1)
    assert raised.value.do == "`sparkfleet describe tiny` shows its groups and ranks."
