"""Inventories with cables, for tests of addresses."""

from sparkfleet.specs.inventory import Inventory


def spark(number):
    return {"address": f"10.0.0.{number}", "user": "nvidia", "host_key": "SHA256:" + "A" * 43}


def end(subnet, host, half="1"):
    return {
        "netdev": f"enp1s0f{half}np{half}",
        "rdma": f"rocep1s0f{half}",
        "address": f"192.168.{subnet}.{host}/24",
    }


def inventory(nodes, links=()):
    return Inventory.model_validate(
        {"fleet": "home", "head": next(iter(nodes)), "nodes": nodes, "links": links}
    )


def cable(one, other, subnet, halves="11"):
    rail = (end(subnet, 10, halves[0]), end(subnet, 11, halves[1]))
    return {"nodes": (one, other), "rails": (rail,)}
