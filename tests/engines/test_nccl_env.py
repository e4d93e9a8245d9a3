import pytest

from sparkfleet.engines.base import RankRail
from sparkfleet.engines.nccl_env import fabric_env, merged


def test_a_pair_over_both_halves_of_its_cable(context):
    assert dict(fabric_env(context(0, 2), "cuda")) == {
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "TP_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
        "UCX_NET_DEVICES": "enp1s0f1np1,enP2p1s0f1np1",
        "OMPI_MCA_btl_tcp_if_include": "enp1s0f1np1",
        "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1",
        "NCCL_IB_DISABLE": "0",
        "NCCL_NET": "IB",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_MERGE_NICS": "1",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    }


def test_one_rank_is_not_pinned(context):
    assert fabric_env(context(), "cuda") == ()


def test_on_a_cpu_only_variables_of_gloo(context):
    assert dict(fabric_env(context(0, 2), "cpu")) == {
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1", "TP_SOCKET_IFNAME": "enp1s0f1np1"
    }  # fmt: skip


@pytest.mark.parametrize("rdma", [(None, None), ("rocep1s0f1", None)])
def test_rails_without_roce_go_over_sockets_and_say_so(context, rdma):
    rails = tuple(
        RankRail(netdev=netdev, rdma=name, address="192.168.100.11")
        for netdev, name in zip(("enp1s0f1np1", "enP2p1s0f1np1"), rdma, strict=True)
    )
    found = dict(fabric_env(context(0, 2, rails=rails), "cuda"))
    assert found["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in found
    assert found["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1"


def test_in_a_ring_ranks_meet_on_the_management_network_and_cables_are_not_merged(context):
    found = dict(fabric_env(context(1, 3, control_netdev="enP7s7"), "cuda"))
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == "enP7s7"
    assert found["NCCL_IB_MERGE_NICS"] == "0"
    assert found["UCX_NET_DEVICES"] == "enp1s0f1np1,enP2p1s0f1np1"


def test_the_family_is_that_of_the_address(context):
    rails = (RankRail(netdev="a", rdma="b", address="fd00::1"),)
    assert dict(fabric_env(context(0, 2, rails=rails), "cuda"))["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"


def test_later_variables_win_at_the_place_of_the_first():
    assert merged((("a", "1"), ("b", "2")), (("a", "3"),)) == (("a", "3"), ("b", "2"))
