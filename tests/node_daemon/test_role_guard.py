"""A node keeps its head: the last check is on the node itself."""

import socket

import pytest
from control_values import inventory

from sparkfleet.controlplane.api.api_models import JoinRequest, Role, UpRequest
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError
from sparkfleet.node_daemon import node_lifecycle, ray_watchdog, role_guard, service_manager
from sparkfleet.node_daemon.role_guard import read_role


@pytest.fixture
def node(paths, monkeypatch):
    """The state directory of a node that starts no watchdog."""
    started = []
    monkeypatch.setattr(service_manager, "start", lambda *_, **__: started.append(1) or "")
    paths.started = started
    return paths


@pytest.fixture
def ray():
    """The address of something that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def joining(node, ray, token="theirs"):
    return JoinRequest(
        fleet="home",
        state_dir=str(node.root),
        node="b",
        host="127.0.0.1",
        head="other",
        ray=ray,
        ray_token=token,
        engine_secret="",
    )


def up(node):
    return UpRequest(fleet="home", state_dir=str(node.root), inventory=inventory())


def role(node, one):
    node.role.write_text(Role(python="p", **one).model_dump_json())


def unchanged(node):
    return node.started == [] and node.ray_token.read_text() != "theirs"


def test_a_join_to_another_head_is_refused_while_the_first_lives(node, ray):
    role(node, {"join": joining(node, ray)})
    with pytest.raises(
        ControlError, match=rf"belongs to fleet home of head other \({ray}\), which is running"
    ):
        ray_watchdog.begin_join(joining(node, "127.0.0.1:1"))
    assert unchanged(node)
    ray_watchdog.begin_join(joining(node, ray))
    assert node.started == [1], "the same head may repeat it"


def test_a_join_to_another_head_is_taken_if_the_first_is_gone_or_of_the_same_fleet(node, ray):
    role(node, {"join": joining(node, "127.0.0.1:1")})
    ray_watchdog.begin_join(joining(node, "127.0.0.1:2"))
    role(node, {"join": joining(node, ray)})
    ray_watchdog.begin_join(joining(node, "127.0.0.1:1", token=node.ray_token.read_text()))
    assert node.started == [1, 1]


def test_a_head_that_lives_joins_nobody(node, ray):
    role(node, {"up": up(node)})
    address = HeadAddress(ray=ray, api="", gateway_host="127.0.0.1", gateway_port=8000)
    node.address.write_text(address.model_dump_json())
    with pytest.raises(ControlError, match="This node is the head of fleet home, which is running") as caught:
        ray_watchdog.begin_join(joining(node, "127.0.0.1:1"))
    assert "move-head" in caught.value.do
    assert unchanged(node)


@pytest.mark.parametrize(("term", "token"), [(2, "own"), (1, "own"), (2, "theirs")])
def test_a_head_that_was_replaced_joins_the_one_of_a_higher_term_of_its_fleet_and_nobody_else(
    node, ray, term, token
):
    role(node, {"up": up(node)})
    address = HeadAddress(ray=ray, api="", gateway_host="127.0.0.1", gateway_port=8000, term=1)
    node.address.write_text(address.model_dump_json())
    node.database.write_text("old")
    given = token if token == "theirs" else node.ray_token.read_text()
    request = joining(node, "127.0.0.1:1", given).model_copy(update={"term": term})
    if (term, token) != (2, "own"):
        with pytest.raises(ControlError, match="This node is the head of fleet home"):
            ray_watchdog.begin_join(request)
        assert unchanged(node)
        assert node.database.exists()
        return
    ray_watchdog.begin_join(request)
    assert read_role(node).join.term == 2
    assert not node.address.exists()
    assert not node.database.exists()
    assert len([*node.backups.glob("set-aside-*/sparkfleet.db")]) == 1


@pytest.mark.parametrize(
    ("other", "own", "expected"),
    [
        ((2, "b"), (1, "a"), True),
        ((1, "b"), (2, "c"), False),
        ((2, "a"), (2, "b"), True),
        ((2, "b"), (2, "a"), False),
    ],
)
def test_of_two_heads_the_one_of_the_higher_term_is_the_head_and_of_one_term_the_first_by_name(
    other, own, expected
):
    assert role_guard.replaces(*other, *own) is expected


@pytest.mark.parametrize("start", [ray_watchdog.begin_up, node_lifecycle.prepare])
def test_a_node_that_has_joined_a_head_that_lives_becomes_none(node, ray, start):
    role(node, {"join": joining(node, ray)})
    with pytest.raises(ControlError, match="belongs to fleet home of head other"):
        start(up(node))
    assert unchanged(node)
    assert not node.address.exists()
    role(node, {"join": joining(node, "127.0.0.1:1")})
    start(up(node))


GARBAGE = [b"", b"garbage", b"{}", b"\xff\xfe", None]
"""None: a directory in its place."""


def spoil(path, content):
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("content", GARBAGE)
def test_a_role_that_cannot_be_used_is_named(node, content):
    spoil(node.role, content)
    with pytest.raises(ControlError, match=r"role\.json cannot be used: ") as caught:
        read_role(node)
    assert "`sparkfleet up` writes it again" in caught.value.do


def test_up_writes_a_spoilt_role_of_a_head_again(node):
    spoil(node.role, b"garbage")
    ray_watchdog.begin_up(up(node))
    assert read_role(node).up is not None
    assert node.started == [1]


def test_a_spoilt_role_on_a_node_with_a_watchdog_may_be_that_of_another_head(node, monkeypatch):
    spoil(node.role, b"garbage")
    monkeypatch.setattr(role_guard, "watchdogs", lambda: {node.root})
    with pytest.raises(ControlError, match="cannot be used") as caught:
        ray_watchdog.begin_up(up(node))
    assert "may belong to a head that is running" in caught.value.means
    assert unchanged(node)
    address = HeadAddress(ray="127.0.0.1:1", api="", gateway_host="127.0.0.1", gateway_port=8000)
    node.address.write_text(address.model_dump_json())  # only a head has one
    ray_watchdog.begin_up(up(node))
    assert node.started == [1]


def test_a_live_head_with_a_spoilt_role_joins_nobody(node, ray):
    spoil(node.role, b"garbage")
    address = HeadAddress(ray=ray, api="", gateway_host="127.0.0.1", gateway_port=8000)
    node.address.write_text(address.model_dump_json())
    with pytest.raises(ControlError, match="This node is the head of fleet home, which is running"):
        ray_watchdog.begin_join(joining(node, "127.0.0.1:1"))
    assert unchanged(node)
    node.address.unlink()
    ray_watchdog.begin_join(joining(node, "127.0.0.1:1"))
    assert node.started == [1]


def test_a_role_of_a_build_whose_ray_had_tls_on_some_networks_only_is_read(node, ray):
    request = joining(node, ray)
    role(node, {"join": request.model_dump() | {"ray_tls": True}})
    assert read_role(node).join == request
