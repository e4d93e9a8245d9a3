"""Cables: both rails up, each in its own subnet, at full speed and MTU; those of RDMA are in `rdma.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_interface

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, fleet_check, link_check
from sparkfleet.doctor.checks.link_ends import FABRIC, ends_of, netdevs_of, not_read, rails_of, why_down
from sparkfleet.doctor.checks.rdma import rail_gid, rail_rdma, rail_rdma_mtu
from sparkfleet.doctor.findings import CheckFault, error, warning
from sparkfleet.doctor.snapshot import EndSnapshot, FleetReadings, LinkSnapshot, RailSnapshot


def _is_down(rail: RailSnapshot, fleet: FleetReadings) -> bool:
    return any(why_down(fleet.node(end.node).netdev(end.netdev)) for end in rail.ends)


@link_check(
    "rail-down",
    "both rails are up",
    needs=("netdevs",),
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks: both halves of a cabled port are up",
)
def rail_down(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a rail that is missing, switched off or without a carrier; a rail that still works is mentioned."""
    alive = sum(not _is_down(rail, fleet) for rail in link.rails)
    for name, rail in rails_of(link):
        down = {
            end: reason for end in rail.ends if (reason := why_down(fleet.node(end.node).netdev(end.netdev)))
        }
        if down:
            yield error(
                f"{name} is down: "
                + " and ".join(f"{end.netdev} on {end.node} {reason}" for end, reason in down.items()),
                means=f"{alive} of {len(link.rails)} rails is left: about half the bandwidth."
                if alive
                else "This link carries no traffic.",
                do=tuple(_lift(down, fleet)),
            )


def _lift(down: dict[EndSnapshot, str], fleet: FleetReadings) -> Iterator[str]:
    for end, reason in down.items():
        switch_on = f"sudo ip link set {end.netdev} up"
        yield f"{switch_on if reason == 'is switched off' else f'ethtool {end.netdev}'}   # on {end.node}"
    for end in down:
        if others := _lit(end, fleet):
            yield (
                f"{' and '.join(others)} on {end.node} has a carrier. If the cable is in that port, move it back, or run"
                " `sparkfleet init` again."
            )
    yield (
        "Push the QSFP plug in at both ends until it clicks; then reboot both nodes: a re-plugged ConnectX-7 may come"
        " up degraded."
    )


def _lit(end: EndSnapshot, fleet: FleetReadings) -> list[str]:
    """Netdevs of RDMA with a carrier that are no rail of the inventory, as of the node's other port."""
    node = fleet.node(end.node)
    free = {link.netdev for link in node.rdma_links or ()} - set(fleet.rail_netdevs(end.node))
    return sorted(one.name for one in node.netdevs or () if one.name in free and one.up and one.carrier)


@link_check(
    "rail-mtu",
    "rails carry jumbo frames",
    needs=("netdevs",),
    source="christopherowen/dgx-spark-networking: MTU 9000 everywhere",
)
def rail_mtu(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports an MTU that is too small at an end, or differs between the ends."""
    for name, rail in rails_of(link):
        found = _mtus(rail, fleet)
        small = {end: mtu for end, mtu in found.items() if mtu < thresholds.RAIL_MTU}
        if small:
            yield _small(name, small, unlike=len(set(found.values())) > 1)


def _small(rail: str, small: dict[EndSnapshot, int], *, unlike: bool) -> CheckFault:
    where = ", ".join(f"{end.netdev} on {end.node} has {mtu}" for end, mtu in small.items())
    return error(
        f"{rail}: MTU is not {thresholds.RAIL_MTU}: {where}",
        means="The ends differ: large messages are dropped, and engines hang."
        if unlike
        else "RoCE sends packets of 1024 instead of 4096 bytes, and TCP needs six times as many packets.",
        do=(
            FABRIC,
            *(
                f"sudo ip link set {end.netdev} mtu 9000   # on {end.node}, until its next boot"
                for end in small
            ),
        ),
    )


def _mtus(rail: RailSnapshot, fleet: FleetReadings) -> dict[EndSnapshot, int]:
    found = ((end, fleet.node(end.node).netdev(end.netdev)) for end in rail.ends)
    return {end: netdev.mtu for end, netdev in found if netdev is not None}


@link_check(
    "rail-address",
    "rails have the addresses of inventory.yaml",
    needs=("netdevs",),
    rules=("nm-phantom-dhcp",),
)
def rail_address(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares the nodes' addresses with those of inventory.yaml."""
    for rail, end, _, netdev in netdevs_of(link, fleet):
        has = [str(one) for one in netdev.ipv4]
        if end.address not in has:
            yield error(
                f"{rail}: {end.netdev} on {end.node} has"
                f" {' and '.join(has) if has else 'no address'}, not {end.address}",
                means="Engines and Ray use the addresses of inventory.yaml: no connection over this rail works.",
                do=FABRIC,
            )
        elif any(one.dynamic for one in netdev.addresses if isinstance(one.interface, IPv4Interface)):
            yield warning(
                f"{rail}: {end.netdev} on {end.node} has its address by DHCP",
                means="The address can change, and NetworkManager takes the rail down during DHCP requests.",
                do=FABRIC,
            )


@link_check(
    "rails-share-subnet",
    "every rail has a subnet of its own",
    needs=("netdevs",),
    rules=("same-subnet-halves",),
    source="NVIDIA dgx-spark-playbooks, switch page; knowledge/rules/rules.yaml same-subnet-halves",
)
def rails_share_subnet(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Checks the addresses on the nodes, not those in the inventory."""
    for name in link.nodes:
        subnets: dict[str, set[str]] = defaultdict(set)
        for _, end, _, netdev in netdevs_of(link, fleet):
            if end.node == name:
                for one in netdev.ipv4:
                    subnets[str(ip_interface(one).network)].add(end.netdev)
        for subnet, netdevs in subnets.items():
            if len(netdevs) > 1:
                yield error(
                    f"{name}: both rails of {link.name} are in one subnet, {subnet} ({' and '.join(sorted(netdevs))})",
                    means="The kernel uses one device per subnet: the second rail carries nothing,"
                    " and RDMA connections fail from time to time.",
                    do=f"{FABRIC}   # gives each rail its own /24",
                )


@link_check(
    "rail-arp",
    "at a switch, a rail answers for its own addresses only",
    needs=("loose_arp",),
    source="docs/decisions.md 182; Documentation/networking/ip-sysctl.rst of the kernel: arp_ignore",
)
def rail_arp(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Looks at rails of a switch, on whose wire both halves of a port are; a cable has nobody else on it."""
    if link.switch is None or len(link.rails) < 2:
        return
    for name in link.nodes:
        loose = fleet.node(name).loose_arp or frozenset()
        answering = sorted({end.netdev for _, end, _ in ends_of(link, fleet) if end.node == name} & loose)
        if answering:
            yield warning(
                f"{name}: {' and '.join(answering)} answer{'s' * (len(answering) == 1)} ARP for the addresses of"
                " other ports (arp_ignore 0)",
                means=f"Both rails are on the wire of {link.switch}: other nodes may send the packets of one to the MAC"
                " of the other, and connections over a rail fail from time to time.",
                do=FABRIC,
            )


@link_check(
    "rails-both",
    "the cable is used with both rails",
    rules=("one-half-only",),
    source="knowledge/rules/rules.yaml one-half-only",
)
def rails_both(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a cable with one rail in the inventory: a QSFP cable has two."""
    if len(link.rails) == 1 and link.rails[0].is_rdma:
        yield warning(
            f"{link.name} has 1 rail in inventory.yaml; a QSFP cable has 2",
            means="About half the bandwidth: 13 instead of 22 GB/s.",
            do=(f"sparkfleet init {' '.join(link.nodes)}   # finds both", FABRIC),
        )


@link_check(
    "rails-bonded", "rails are not bonded", needs=("netdevs",), rules=("bond-breaks-rdma",),
    source="knowledge/rules/rules.yaml bond-breaks-rdma",
)  # fmt: skip
def rails_bonded(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports netdevs in a bond or a bridge, which takes their GIDs."""
    for rail, end, _, netdev in netdevs_of(link, fleet):
        if netdev.master:
            yield error(
                f"{rail}: {end.netdev} on {end.node} belongs to {netdev.master}",
                means="RDMA does not work: the rail's addresses moved to the bond, which has no RDMA device.",
                do=(f"sudo ip link set {end.netdev} nomaster   # on {end.node}", FABRIC),
            )


@link_check(
    "rail-speed", "rails run at 200 Gb/s", needs=("netdevs",), rules=("switch-autoneg-100g",),
    source="NVIDIA dgx-spark-playbooks, switch page",
)  # fmt: skip
def rail_speed(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a negotiated speed below 200 Gb/s."""
    for rail, end, node, netdev in netdevs_of(link, fleet):
        settings = node.settings.get(end.netdev)
        speed = settings.speed_mb_per_s if settings else None
        if not end.rdma or not netdev.carrier:
            continue
        if speed is None:
            yield not_read("speed", end, node, "settings")
        elif speed < thresholds.RAIL_SPEED_MBIT:
            yield warning(
                f"{rail}: {end.netdev} on {end.node} runs at {speed // 1000} Gb/s, not 200",
                means="The switch negotiated a lower speed, or the cable is made for 100 Gb/s.",
                do=(
                    "On the switch: turn auto-negotiation off and set 200G-baseCR4.",
                    f"ethtool -m {end.netdev} | head   # shows the type of the cable",
                ),
            )


@link_check(
    "rail-pcie",
    "each rail has four lanes of PCIe Gen5",
    needs=("netdevs",),
    source="lspci: LnkSta 32GT/s x4 on both functions; a BIOS before 2026-04 may train fewer lanes",
)
def rail_pcie(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a PCIe link that is narrower or slower than the board's."""
    for rail, end, node in ends_of(link, fleet):
        if not end.rdma:
            continue
        pci = node.pci_link(end.netdev)
        if pci is None:
            yield not_read("PCIe link", end, node, "pci_links")
        elif pci.width < thresholds.PCIE_LANES or pci.gt_per_s < thresholds.PCIE_GT_PER_S:
            yield error(
                f"{rail}: {end.netdev} on {end.node} has PCIe {pci.gt_per_s:g} GT/s x{pci.width},"
                f" not {thresholds.PCIE_GT_PER_S:g} GT/s x{thresholds.PCIE_LANES}",
                means="This rail cannot reach 200 Gb/s, whatever the link reports. Some OEM firmware from before"
                " 2026-04 trains the second half with two lanes.",
                do=(
                    "fwupdmgr refresh && fwupdmgr update",
                    "Shut down, unplug the power for five minutes, boot.",
                ),
            )


@link_check(
    "rail-fec",
    "error correction is on",
    needs=("netdevs",),
    source="published `ethtool --show-fec` of Sparks: RS on a healthy 200 Gb/s cable",
)
def rail_fec(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports a 200 Gb/s cable without RS error correction."""
    for rail, end, node, netdev in netdevs_of(link, fleet):
        fec = node.fec.get(end.netdev)
        if not end.rdma or not netdev.carrier:
            continue
        if fec is None:
            yield not_read("error correction", end, node, "fec")
        elif not fec.active:
            yield warning(
                f"{rail}: {end.netdev} on {end.node} has no error correction (FEC)",
                means="At 200 Gb/s every cable has bit errors; without RS they become retransmissions.",
                do=f"sudo ethtool --set-fec {end.netdev} encoding auto",
            )


@link_check(
    "link-avahi", "nodes are reached by IP address", rules=("avahi-name-storm",),
    source="knowledge/rules/rules.yaml avahi-name-storm",
)  # fmt: skip
def link_avahi(link: LinkSnapshot, fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports mDNS names, which change between a node's networks."""
    for name in link.nodes:
        address = fleet.node(name).address
        if address.endswith(".local"):
            yield warning(
                f"{name} is reached as {address}",
                means="A .local name may resolve to a rail today and to the Wi-Fi tomorrow.",
                do="Set its IP address in inventory.yaml.",
            )


@fleet_check("links-known", "the cables are in inventory.yaml")
def links_known(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Reports an inventory of several nodes without links."""
    if len(fleet.nodes) > 1 and not fleet.links:
        yield warning(
            "inventory.yaml declares no links",
            means="Models that need more than one node cannot be planned.",
            do="sparkfleet init HOST…   # finds the cables",
        )


CHECKS: tuple[Check, ...] = (
    links_known,
    rail_down,
    rail_address,
    rails_share_subnet,
    rail_arp,
    rail_mtu,
    rails_both,
    rails_bonded,
    rail_speed,
    rail_rdma,
    rail_gid,
    rail_rdma_mtu,
    rail_pcie,
    rail_fec,
    link_avahi,
)
