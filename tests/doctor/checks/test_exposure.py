"""Ports that other machines reach."""

from spark_faults import (
    engine_on_every_address,
    engine_with_many_ports,
)
from sparks import INVENTORY

from sparkfleet.doctor import registry
from sparkfleet.doctor.collect import gather
from sparkfleet.hostfacts.memory import ReadKernel
from sparkfleet.specs.load import parse_inventory


async def test_without_a_common_rail_ray_uses_the_lan(sparks):
    spec = parse_inventory(INVENTORY.partition("links:")[0], "inventory.yaml")
    sparks[1].answers["ss",] = 'LISTEN 0 9 192.168.1.12:6379 *:* users:(("gcs_server",pid=7,fd=3))\n'
    fleet = await gather(spec, {spark.name: spark.channel() for spark in sparks})
    (told,) = [one for one in registry.examine(fleet) if one.id == "exposed-ports" and one.severity != "ok"]
    assert told.severity == "warning"
    assert "No rail joins all nodes" in told.means


async def test_the_rendezvous_of_ranks_needs_a_firewall(sparks):
    engine_on_every_address(*sparks)
    fleet = await gather(
        parse_inventory(INVENTORY, "inventory.yaml"), {one.name: one.channel() for one in sparks}
    )
    (told,) = [
        one for one in registry.examine(fleet) if one.id == "exposed-ports" and one.severity == "error"
    ]
    assert "PyTorch listens on every address" in told.means
    assert "sudo ufw allow in on enp1s0f1np1" in str(told.do)


async def test_ports_behind_the_fleets_firewall_are_a_note(sparks):
    """Of the others nothing changes: the rules close the fleet's own range alone."""
    engine_with_many_ports(*sparks)
    sparks[1].answers["ss",] += 'LISTEN 0 4096 *:8001 *:* users:(("vllm",pid=77,fd=3))\n'
    rules = "/etc/sparkfleet/firewall.nft:    tcp dport 10002-60999 counter drop\n"
    sparks[1].change(ReadKernel.argv, "/etc/ufw/ufw.conf", f"{rules}/etc/ufw/ufw.conf")
    fleet = await gather(
        parse_inventory(INVENTORY, "inventory.yaml"), {one.name: one.channel() for one in sparks}
    )
    told = {
        one.severity: one.what
        for one in registry.examine(fleet)
        if one.id == "exposed-ports" and one.severity != "ok"
    }
    assert "close 10 listening ports to other machines" in told["info"]
    assert "8001" in told["error"]


async def test_rails_loopback_and_the_gateway_are_no_exposure(sparks, findings):
    sparks[0].answers["ss",] = "".join(
        f'LISTEN 0 9 {address} *:* users:(("raylet",pid=7,fd=3))\n'
        for address in (
            "192.168.100.11:6379",
            "127.0.0.1:8265",
            "[::1]:9000",
            "0.0.0.0:8000",
            "127.0.1.1:40001",
        )
    )
    assert await findings() == []
