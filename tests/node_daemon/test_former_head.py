"""A head that was replaced while it was away: it finds the newer one by its term, and becomes an ordinary node."""

import asyncio
import contextlib
import ssl

import pytest
from control_values import inventory

from sparkfleet.controlplane.api.api_models import Role, UpRequest
from sparkfleet.controlplane.ray.ray_tls import prepare_tls
from sparkfleet.controlplane.state.head_address import HeadAddress, HeadMove, read_address, write_address
from sparkfleet.controlplane.store_safety.moving import begin_move, release_head
from sparkfleet.node_daemon import former_head
from sparkfleet.node_daemon.former_head import NewerHead, find_newer_head, join_newer_head
from sparkfleet.node_daemon.role_guard import read_role
from sparkfleet.runtime.files.fleet_paths import FleetPaths

TOKEN = "a" * 64
ADDRESSES = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}


class _Address:
    def __init__(self, address):
        self.address = address


@pytest.fixture(autouse=True)
def addresses(monkeypatch):
    """Three nodes on loopback; the first one is this head."""
    found = {name: _Address(one) for name, one in ADDRESSES.items()}
    monkeypatch.setattr(former_head, "node_addresses", lambda _: found)


@pytest.fixture
def head(tmp_path):
    paths = FleetPaths(tmp_path / "a")
    paths.root.mkdir()
    paths.create()
    paths.ray_token.write_text(TOKEN)
    prepare_tls(paths, ADDRESSES["a"], 1)
    yield paths
    with contextlib.suppress(OSError):
        paths.run.rmdir()


def request(paths):
    return UpRequest(fleet="home", state_dir=str(paths.root), inventory=inventory("a", "b", "c"))


def address(paths, port, term):
    write_address(
        paths,
        HeadAddress(
            ray=f"127.0.0.1:{port}",
            api="http://127.0.0.1:1",
            gateway_host="127.0.0.1",
            gateway_port=1,
            term=term,
        ),
    )


@contextlib.asynccontextmanager
async def listening(tmp_path, node, port=0, *, term=None, token=TOKEN, move=""):
    """Something that listens like a node's Ray: it has a certificate of the fleet, and requires one."""
    paths = FleetPaths(tmp_path / f"ray of {node}")
    paths.root.mkdir(exist_ok=True)
    paths.ray_token.write_text(token)
    prepare_tls(paths, ADDRESSES[node], term, move)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths.ray_tls / "certificate.pem", paths.ray_tls / "key.pem")
    context.load_verify_locations(paths.ray_tls / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(lambda _, writer: writer.close(), ADDRESSES[node], port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_head_of_the_highest_term_is_found_on_the_port_of_the_former_one(head, tmp_path):
    async with listening(tmp_path, "b", term=2) as port, listening(tmp_path, "c", port, term=3):
        address(head, port, 1)
        assert await find_newer_head(head, request(head)) == NewerHead("c", f"127.0.0.3:{port}", 3)


async def test_of_two_heads_of_one_term_each_finds_the_same_one(head, tmp_path):
    """Two commands replaced one lost head on two sides of a broken cable: both served for ever."""
    async with listening(tmp_path, "b", term=2) as port:
        address(head, port, 2)
        of_c = request(head).model_copy(update={"inventory": inventory("c", "a", "b")})
        assert await find_newer_head(head, of_c) == NewerHead("b", f"127.0.0.2:{port}", 2)
        assert await find_newer_head(head, request(head)) is None, "the name of this one is before it"


async def test_a_new_head_that_never_took_over_is_no_newer_one(head, tmp_path):
    """It was cut off while the move was undone, waits beside the Ray that it had, and has the port and a higher term."""
    async with listening(tmp_path, "b", term=2, move="t1") as port:
        address(head, port, 1)
        begin_move(head, HeadMove(to="b", token="t1"))
        release_head(head)
        assert await find_newer_head(head, request(head)) is None
        begin_move(head, HeadMove(to="b", token="t2"))
        release_head(head)
        assert await find_newer_head(head, request(head)) is None, "nor is one of an earlier move"
    async with listening(tmp_path, "b", term=2, move="t3") as port:
        address(head, port, 1)
        assert await find_newer_head(head, request(head)) is not None, "another move that was completed"


@pytest.mark.parametrize(
    ("seen", "own"),
    [({"term": 1}, 1), ({"term": 1}, 2), ({}, 1), ({"term": 9, "token": "b" * 64}, 1)],
    ids=["of-this-term", "of-a-lower-term", "an-ordinary-node", "of-another-fleet"],
)
async def test_nobody_else_replaces_it(head, tmp_path, seen, own):
    async with listening(tmp_path, "b", **seen) as port:
        address(head, port, own)
        assert await find_newer_head(head, request(head)) is None


async def test_a_program_that_is_no_ray_and_one_that_is_silent_replace_nothing(head, monkeypatch):
    monkeypatch.setattr(former_head, "CONNECT_S", 0.2)

    async def silent(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def talks(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(silent, ADDRESSES["b"], 0) as one:
        port = one.sockets[0].getsockname()[1]
        async with await asyncio.start_server(talks, ADDRESSES["c"], port):
            address(head, port, 1)
            assert await find_newer_head(head, request(head)) is None


async def test_a_head_that_is_being_moved_or_has_never_started_looks_for_none(head, tmp_path):
    assert await find_newer_head(head, request(head)) is None
    async with listening(tmp_path, "b", term=2) as port:
        address(head, port, 1)
        begin_move(head, HeadMove(to="b", token="t"))
        assert await find_newer_head(head, request(head)) is None
        head.head_move.unlink()
        assert await find_newer_head(head, request(head)) is not None
        (head.ray_tls / "certificate.pem").unlink()
        assert await find_newer_head(head, request(head)) is None


def test_it_joins_the_newer_head_and_its_store_is_set_aside(head):
    address(head, 7, 1)
    head.database.write_text("old")
    secret = head.engine_secret.read_text()
    role = Role(python="p", up=request(head))
    joined = join_newer_head(head, role, NewerHead("b", "127.0.0.2:7", 2))
    assert read_role(head) == joined
    assert joined.up is None
    assert (joined.join.node, joined.join.head, joined.join.ray, joined.join.term) == (
        "a",
        "b",
        "127.0.0.2:7",
        2,
    )
    assert not head.database.exists()
    assert [one.read_text() for one in head.backups.glob("set-aside-*/sparkfleet.db")] == ["old"]
    assert read_address(head) is None
    assert head.engine_secret.read_text() == secret
