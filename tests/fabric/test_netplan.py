import shutil
import subprocess

import pytest
import yaml

from sparkfleet.errors import SparkfleetError
from sparkfleet.fabric.discovery import DiscoveredLinks, FoundEnd, FoundLink, FoundRail
from sparkfleet.fabric.netplan import changes, claims, plan_fabric, render

HALVES = ("enp1s0f1np1", "enP2p1s0f1np1")


@pytest.fixture
def joined(netdev, spark):
    """joined((1, 2), (2, 3)) → what was found and the views, addresses by (node, name) where given."""

    def make(*pairs, addresses=(), switch=None, lans=()):
        given = dict(addresses)
        numbers = sorted({number for pair in pairs for number in pair})

        def end(number, name):
            view = netdev(number, name, *given.get((number, name), ()), mtu=1500)
            return FoundEnd(node=f"spark{number}", netdev=view, rdma=None)

        links, ports = [], {number: [] for number in numbers}
        for index, pair in enumerate(pairs):
            for number in pair:
                ports[number].append(index)
            names = [
                HALVES if len(ports[number]) == 1 else ("enp1s0f0np0", "enP2p1s0f0np0") for number in pair
            ]
            ends = [
                tuple(end(number, name[half]) for number, name in zip(pair, names, strict=True))
                for half in (0, 1)
            ]
            links.append(
                FoundLink(
                    nodes=tuple(f"spark{number}" for number in pair),
                    switch=switch,
                    rails=tuple(FoundRail(ends=one, methods=("arp",)) for one in ends),
                )
            )
        rails = {
            number: [
                e.netdev for link in links for r in link.rails for e in r.ends if e.node == f"spark{number}"
            ]
            for number in numbers
        }
        views = [spark(number, *rails[number]) for number in numbers]
        views = [view.model_copy(update={"networks": (*view.networks, *lans)}) for view in views]
        return DiscoveredLinks(links=tuple(links), findings=()), views

    return make


def addresses(plan):
    return {(one.node, port.netdev): port.address for one in plan.nodes for port in one.ports}


def test_one_cable_gets_two_subnets(joined):
    plan = plan_fabric(*joined((1, 2)))
    assert addresses(plan) == {
        ("spark1", "enp1s0f1np1"): "192.168.100.10/24",
        ("spark2", "enp1s0f1np1"): "192.168.100.11/24",
        ("spark1", "enP2p1s0f1np1"): "192.168.101.10/24",
        ("spark2", "enP2p1s0f1np1"): "192.168.101.11/24",
    }
    assert plan.peers("spark1") == (("enp1s0f1np1", "192.168.100.11"), ("enP2p1s0f1np1", "192.168.101.11"))


def test_a_ring_of_three_gets_six(joined):
    plan = plan_fabric(*joined((1, 2), (1, 3), (2, 3)))
    subnets = {address.rpartition(".")[0] for address in addresses(plan).values()}
    assert len(subnets) == 6
    assert len(addresses(plan)) == 12


def test_a_switch_gets_one_subnet_per_half(joined):
    plan = plan_fabric(*joined((1,), (2,), (3,), switch="crs812"))
    assert addresses(plan)["spark3", "enp1s0f1np1"] == "192.168.100.12/24"
    assert {address.rpartition(".")[0] for address in addresses(plan).values()} == {
        "192.168.100",
        "192.168.101",
    }


def test_no_subnet_that_a_node_has_a_route_to_is_used(joined):
    plan = plan_fabric(*joined((1, 2), lans=("192.168.96.0/20", "192.168.112.0/24")))
    assert addresses(plan)["spark1", "enp1s0f1np1"] == "192.168.113.10/24"


def test_no_free_subnet_is_an_error(joined):
    with pytest.raises(SparkfleetError, match="No free /24 is left"):
        plan_fabric(*joined((1, 2), lans=("192.168.0.0/16", "10.0.0.0/8")))


def test_addresses_that_fit_are_kept_and_only_the_mtu_changes(joined):
    given = {
        (1, HALVES[0]): ["172.31.5.1/29"],
        (2, HALVES[0]): ["172.31.5.2/29"],
        (1, HALVES[1]): ["172.31.5.9/29"],
        (2, HALVES[1]): ["172.31.5.10/29"],
    }
    found, views = joined((1, 2), addresses=given.items())
    plan = plan_fabric(found, views)
    assert addresses(plan)["spark2", HALVES[1]] == "172.31.5.10/29"
    assert changes(plan.of("spark1"), views[0]) == (
        "enp1s0f1np1: MTU 1500 → 9000",
        "enP2p1s0f1np1: MTU 1500 → 9000",
    )


def test_both_halves_in_one_subnet_get_subnets_of_their_own(joined):
    given = {
        (1, HALVES[0]): ["192.168.200.12/24"],
        (2, HALVES[0]): ["192.168.200.13/24"],
        (1, HALVES[1]): ["192.168.200.14/24"],
        (2, HALVES[1]): ["192.168.200.15/24"],
    }
    plan = plan_fabric(*joined((1, 2), addresses=given.items()))
    assert addresses(plan)["spark1", HALVES[0]] == "192.168.200.12/24"
    assert addresses(plan)["spark1", HALVES[1]] == "192.168.100.10/24"


@pytest.mark.parametrize(
    ("given", "fifth"),
    [
        ({n: f"10.9.{{half}}.{n}/24" for n in (1, 2, 3, 4)}, "10.9.{half}.14/24"),  # the owner's own
        (
            {1: "192.168.10{half}.10/24", 3: "192.168.10{half}.12/24", 4: "192.168.10{half}.13/24"},
            "192.168.10{half}.14/24",
        ),
        ({n: f"172.31.5{{half}}.{n}/29" for n in (1, 2, 3)}, "172.31.5{half}.5/29"),
        # It comes from another fleet, and has an address of this one.
        ({1: "10.9.{half}.1/24", 2: "10.9.{half}.2/24", 5: "10.9.{half}.1/24"}, "10.9.{half}.12/24"),
    ],
    ids=["own subnets", "one was removed", "small", "twice"],
)
def test_a_new_node_at_a_switch_changes_no_address_of_the_others(joined, given, fifth):
    """All rails of all nodes were given other addresses, because the new one had none."""
    nodes = sorted({*given, 5})
    ends = {
        (n, name): [text.format(half=half)] for n, text in given.items() for half, name in enumerate(HALVES)
    }
    planned = addresses(plan_fabric(*joined(*((n,) for n in nodes), addresses=ends.items(), switch="crs812")))
    kept = {(f"spark{n}", name): one for (n, name), (one,) in ends.items() if n != 5}
    assert {end: one for end, one in planned.items() if end[0] != "spark5"} == kept
    assert [planned["spark5", name] for name in HALVES] == [fifth.format(half=half) for half in (0, 1)]


def test_the_file_is_netplan(joined):
    plan = plan_fabric(*joined((1, 2)))
    network = yaml.safe_load(render(plan.of("spark1")))["network"]
    assert network["version"] == 2
    assert network["ethernets"]["enP2p1s0f1np1"] == {
        "addresses": ["192.168.101.10/24"],
        "mtu": 9000,
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": [],
        "optional": True,
    }


def test_other_files_that_configure_a_rail_are_reported():
    files = {"/etc/netplan/40-cx7.yaml": ("enp1s0f1np1", "enx9"), "/etc/netplan/01-lan.yaml": ("enP7s7",)}
    (claim,) = claims(files, HALVES)
    assert claim.startswith("/etc/netplan/40-cx7.yaml also configures enp1s0f1np1")


def test_the_real_netplan_reads_the_file(joined, tmp_path):
    """Its own program makes what networkd would be given; nothing of this machine is touched."""
    if shutil.which("netplan") is None:
        pytest.skip("netplan is not installed here")
    plan = plan_fabric(*joined((1, 2)))
    file = tmp_path / "etc" / "netplan" / "60-sparkfleet-rails.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(render(plan.of("spark1")))
    file.chmod(0o600)
    done = subprocess.run(
        ["netplan", "generate", "--root-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in tmp_path.rglob("*.network")}
    rail = next(text for name, text in made.items() if "enp1s0f1np1" in name)
    assert "Address=192.168.100.10/24" in rail
    assert "LinkLocalAddressing=no" in rail
    links = "".join(path.read_text() for path in tmp_path.rglob("*.link")) + "".join(made.values())
    assert "MTUBytes=9000" in links
