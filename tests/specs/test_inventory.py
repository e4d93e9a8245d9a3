"""Fields of an inventory, and every message of a refusal."""

from __future__ import annotations

import copy
import pickle
from ipaddress import ip_interface
from pathlib import Path

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.specs.inventory import EndpointTls, Gateway, Inventory, Node
from sparkfleet.specs.load import parse_inventory, to_yaml

EXAMPLES = Path(__file__).parents[0] / "examples"
TWO_SPARKS = (EXAMPLES / "inventory-two-sparks.yaml").read_text()
SWITCH = (EXAMPLES / "inventory-switch.yaml").read_text()
KEY = "SHA256:" + "a" * 43


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_inventory(text, "i.yaml")
    return str(caught.value).splitlines()


def one_node(fields: str) -> str:
    return f"fleet: f\nhead: n\nnodes:\n  n: {{{fields}}}\n"


def one_link(nodes: str, rails: str) -> str:
    far = f'{{address: 10.0.0.2, user: u, host_key: "{KEY}"}}'
    start = f"fleet: f\nhead: a\nnodes:\n  a: {{address: local}}\n  b: {far}\nlinks:\n"
    return f"{start}  - nodes: [{nodes}]\n    rails:\n{rails}"


def test_two_sparks() -> None:
    inventory = parse_inventory(TWO_SPARKS)
    spark1, spark2 = inventory.nodes.values()
    assert (inventory.fleet, inventory.head, list(inventory.nodes)) == (
        "home",
        "spark1",
        ["spark1", "spark2"],
    )
    assert (spark1.user, spark1.port, spark1.jump, len(spark1.engines)) == ("nvidia", 22, None, 0)
    assert spark2.engines["vllm"].python == "/opt/vllm/bin/python"
    assert spark2.jump is not None
    assert spark2.jump.address == "fe80::1%eth0"
    assert inventory.links[0].rails[1][0].interface == ip_interface("192.168.101.10/24")
    assert inventory.gateway == Gateway(host="127.0.0.1", port=0, max_body_mb=32)
    assert inventory.gateway.max_body_bytes == 32_000_000


def test_local_and_switch() -> None:
    inventory = parse_inventory(SWITCH)
    assert inventory.nodes["a"].is_local
    assert not inventory.nodes["b"].is_local
    assert inventory.links[0].switch == "sw"
    assert inventory.links[0].rails[0][0].rdma is None


@pytest.mark.parametrize("text", [TWO_SPARKS, SWITCH])
def test_it_travels(text: str) -> None:
    inventory = parse_inventory(text)
    assert Inventory.model_validate_json(inventory.model_dump_json()) == inventory
    assert pickle.loads(pickle.dumps(inventory)) == inventory == copy.deepcopy(inventory)
    assert parse_inventory(to_yaml(inventory)) == inventory
    assert hash(parse_inventory(text)) == hash(inventory)


def test_it_is_frozen() -> None:
    inventory = parse_inventory(SWITCH)
    with pytest.raises(TypeError):
        inventory.nodes["c"] = Node(address="local")  # type: ignore[index]  # that is the test
    with pytest.raises(ValueError, match="frozen"):
        inventory.head = "b"  # type: ignore[misc]  # that is the test


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            "address: 10.0.0.1, user: u",
            'nodes.n.host_key: missing. Expected the fingerprint of the node\'s SSH host key ("SHA256:…"); '
            "run `sparkfleet init` to read and pin it.",
        ),
        (
            f"address: spark, host_key: '{KEY}'",
            "nodes.n.user: missing. Expected the user to log in as over SSH.",
        ),
        (
            "address: local, user: u",
            "nodes.n.user: given, but `address: local` needs no SSH. Expected none.",
        ),
        (
            "address: local, port: 23",
            "nodes.n.port: given, but `address: local` needs no SSH. Expected none.",
        ),
        (
            "address: local, engines: {custom: {python: /usr/bin/python3}}",
            "nodes.n.engines.custom: has no environment. Expected vllm, sglang, trtllm or llama.cpp.",
        ),
        (
            "address: local, engines: {vlm: {python: /usr/bin/python3}}",
            'nodes.n.engines.vlm: unknown engine "vlm". Did you mean "vllm"?'
            " Known: vllm, sglang, trtllm, llama.cpp, custom.",
        ),
        (
            "address: local, engines: {vllm: {python: venv/bin/python}}",
            'nodes.n.engines.vllm.python: found "venv/bin/python". Expected an absolute path: '
            "letters, digits and . _ + @ = , - between slashes, without . and .. as parts.",
        ),
        (
            "address: 192.168.1.300",
            'nodes.n.address: found "192.168.1.300", which is no IP address. '
            "Expected an IP address or a host name.",
        ),
        (
            "address: 0.0.0.0",
            'nodes.n.address: found "0.0.0.0", which is no machine\'s address. '
            "Expected an IP address or a host name.",
        ),
        ("address: local, port: 22x", 'nodes.n.port: found "22x". Expected a whole number.'),
        ("address: local, port: 65536", "nodes.n.port: found the number 65536. Expected at most 65535."),
        ("address: local, port: true", "nodes.n.port: found true. Expected a whole number."),
        ("address: 10", "nodes.n.address: found the number 10. Expected text; put it in quotes."),
        ("address: local, jump: me@host", 'nodes.n.jump: found "me@host". Expected a mapping (`key: value` lines).'),
        (
            "address: local, jump: {address: h, user: u}",
            'nodes.n.jump.host_key: missing. Expected the fingerprint of its SSH host key ("SHA256:…"); '
            "any other key is refused.",
        ),
        (
            "address: local, adress: x",
            'nodes.n.adress: unknown field "adress". Did you mean "address"? '
            'Known: address, user, port, host_key, identity_file, jump, engines.',
        ),
        ("adress: local", "nodes.n.adress: unknown field \"adress\". Did you mean \"address\"? "
                          "Known: address, user, port, host_key, identity_file, jump, engines."),
    ],
)  # fmt: skip
def test_a_wrong_node(fields: str, expected: str) -> None:
    assert problems(one_node(fields)) == [f"i.yaml:4: {expected}"]


HOSTILE = [
    "a;b",
    "a b",
    "$(id)",
    "`id`",
    "a|b",
    "a\\nb",
    "a\\0b",
    "-oProxyCommand=x",
    "a&b",
    "a>b",
    "\\e[31m",
    "",
    "é",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "field",
    [
        "address",
        "user",
        "host_key",
        "identity_file",
        "jump",
        "engines",
        "netdev",
        "rdma",
        "gateway",
        "head",
        "name",
    ],
)
def test_nothing_a_shell_could_act_on(field: str, text: str) -> None:
    hostile = f'"{text}"'
    node = {
        "address": f"address: {hostile}",
        "user": f"address: h, user: {hostile}",
        "host_key": f"address: h, user: u, host_key: {hostile}",
        "identity_file": f"address: h, identity_file: {hostile}",
        "jump": f"address: h, jump: {{address: {hostile}}}",
        "engines": f"address: local, engines: {{vllm: {{python: {hostile}}}}}",
    }
    rails = f"      - [{{netdev: {hostile}, rdma: {hostile}, address: 10.1.0.1/24}}]"
    documents = {
        "netdev": one_link("a", rails),
        "rdma": one_link("a", rails),
        "gateway": f"{one_node('address: local')}gateway: {{host: {hostile}}}",
        "head": f"fleet: f\nhead: {hostile}\nnodes: {{}}",
        "name": f"fleet: f\nhead: n\nnodes: {{{hostile}: {{address: local}}}}",
    }
    found = problems(documents.get(field) or one_node(node[field]))
    assert any(f"{field}" in line or field in ("jump", "engines", "name", "gateway") for line in found)
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize(
    ("nodes", "rails", "expected"),
    [
        (
            "a, b",
            "      - [{netdev: e, address: 10.1.0.1/24}, {netdev: e, address: 10.2.0.2/24}]",
            "links[0].rails[0][1].address: 10.2.0.2/24 is not in 10.1.0.0/24, the subnet of the other end. "
            "Expected both ends of a rail in one subnet.",
        ),
        (
            "a, b",
            "      - [{netdev: e, address: 10.1.0.1/24}, {netdev: e, address: 10.1.0.1/24}]",
            "links[0].rails[0][1].address: 10.1.0.1 is also the address of the other end. "
            "Expected an address of its own.",
        ),
        (
            "a, b",
            "      - [{netdev: e, address: 10.1.0.1/24}]",
            "links[0].rails[0]: found 1 ends. Expected one end per node of the link (a, b).",
        ),
        (
            "a",
            "      - [{netdev: e, address: 10.1.0.1/24}]",
            "links[0].nodes: do not describe a cable. Expected two nodes, or one node and a `switch`.",
        ),
        (
            "a, c",
            "      - [{netdev: e, address: 10.1.0.1/24}, {netdev: e, address: 10.1.0.2/24}]",
            'links[0].nodes[1]: unknown node "c". Known: a, b.',
        ),
        ("a, b, a", "      - []", "links[0].nodes: found a list of 3. Expected at most 2."),
        ("a, b", "      []", "links[0].rails: found a list of 0. Expected at least 1."),
    ],
)
def test_a_wrong_link(nodes: str, rails: str, expected: str) -> None:
    found = problems(one_link(nodes, rails))
    assert [line.partition(": ")[2] for line in found] == [expected]


def test_a_link_to_itself() -> None:
    rails = "      - [{netdev: e, address: 10.1.0.1/24}, {netdev: f, address: 10.1.0.2/24}]"
    assert problems(one_link("a, a", rails)) == [
        'i.yaml:7: links[0].nodes[1]: found "a" twice. Expected another node.'
    ]


@pytest.mark.parametrize(
    "address", ["10.1.0.1", "10.1.0.1/33", "10.1.0.0/24", "10.1.0.255/24", "127.0.0.1/8", "::/64"]
)
def test_an_address_that_no_netdev_can_have(address: str) -> None:
    found = problems(one_link("a", f"      - [{{netdev: e, address: '{address}'}}]"))
    assert found[0].startswith(f'i.yaml:9: links[0].rails[0][0].address: found "{address}"')
    assert found[0].endswith("Expected an address with its prefix length, such as 192.168.100.10/24.")


@pytest.mark.parametrize("address", ["10.1.0.0/31", "10.1.0.1/31", "fd00::1/64"])
def test_an_address_that_a_netdev_can_have(address: str) -> None:
    text = one_link("a", f"      - [{{netdev: e, address: '{address}'}}]\n    switch: sw")
    assert parse_inventory(text).links[0].rails[0][0].interface == ip_interface(address)


@pytest.mark.parametrize("second", ["10.1.0.0/16", "10.1.0.0/24", "10.1.0.128/25"])
def test_two_rails_of_a_node_in_one_subnet(second: str) -> None:
    network = ip_interface(second).network
    near, far = (f"{network[index]}/{network.prefixlen}" for index in (3, 4))
    rails = f"""\
      - [{{netdev: e0, address: 10.1.0.1/24}}, {{netdev: e0, address: 10.1.0.2/24}}]
      - [{{netdev: e1, address: {near}}}, {{netdev: e1, address: {far}}}]
"""
    found = problems(one_link("a, b", rails))
    assert [" of another rail of " in line for line in found] == [True, True]
    assert all(line.endswith("Expected a subnet of its own for each rail.") for line in found)


def test_a_device_on_two_rails() -> None:
    rails = """\
      - [{netdev: e0, rdma: r0, address: 10.1.0.1/24}, {netdev: e0, address: 10.1.0.2/24}]
      - [{netdev: e0, rdma: r0, address: 10.2.0.1/24}, {netdev: e1, address: 10.2.0.2/24}]
"""
    assert problems(one_link("a, b", rails)) == [
        "i.yaml:10: links[0].rails[1][0].netdev: e0 of a is already on another rail. Expected one of its own.",
        "i.yaml:10: links[0].rails[1][0].rdma: r0 of a is already on another rail. Expected one of its own.",
    ]


def test_one_machine_twice() -> None:
    text = "fleet: f\nhead: a\nnodes:\n  a: {address: local}\n  b:\n    address: local\n"
    assert problems(text) == [
        "i.yaml:6: nodes.b.address: local is already the address of node a. Expected each machine once."
    ]


def test_the_head_is_a_node() -> None:
    text = one_node("address: local").replace("n:", "spark1:").replace("head: n", "head: spark2")
    assert problems(text) == ['i.yaml:2: head: unknown node "spark2". Did you mean "spark1"? Known: spark1.']


def test_a_fleet_without_nodes() -> None:
    assert problems("fleet: f\nhead: a\nnodes: {}") == [
        "i.yaml:3: nodes: is empty. Expected at least one node."
    ]


@pytest.mark.parametrize("name", ["Spark1", "-a", "a-", "a_b", "a" * 33, "a.b"])
def test_a_wrong_name(name: str) -> None:
    nodes = problems(f"fleet: {name}\nhead: a\nnodes:\n  {name}: {{address: local}}")
    assert [line.split(":")[1] for line in nodes] == ["1", "4"]
    assert all("Expected a" in line for line in nodes)


def test_the_endpoint_has_no_tls_a_generated_certificate_or_given_files() -> None:
    def tls(text: str) -> object:
        return parse_inventory(one_node("address: local") + f"gateway: {{{text}}}").gateway.tls

    assert tls("port: 0") is None
    assert tls("tls: generated") == EndpointTls()
    assert tls("tls: {cert: /c.pem, key: /k.pem}") == EndpointTls(cert="/c.pem", key="/k.pem")
    stored = parse_inventory(one_node("address: local") + "gateway: {tls: generated}")
    assert type(stored).model_validate_json(stored.model_dump_json()) == stored


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tls: letsencrypt", 'gateway.tls: found "letsencrypt". Expected `generated`'),
        ("tls: {cert: /c.pem}", "gateway.tls.key: is missing. Expected both files"),
        ("tls: {cert: c.pem, key: /k.pem}", "gateway.tls.cert: "),
        ("tls: yes", "gateway.tls: "),
    ],
)
def test_a_wrong_certificate_is_refused_with_its_line(text: str, found: str) -> None:
    (line,) = problems(one_node("address: local") + f"gateway: {{{text}}}")
    assert found in line


def test_the_gateway_may_listen_on_every_interface() -> None:
    text = one_node("address: local") + 'gateway: {host: "0.0.0.0", port: 443}'
    assert parse_inventory(text).gateway.host == "0.0.0.0"


def spread(gateway: str) -> str:
    far = f'{{address: 10.0.0.2, user: u, host_key: "{KEY}"}}'
    nodes = f"  a: {{address: local}}\n  b: {far}\n  c: {far.replace('.2', '.3')}\n"
    return f"fleet: f\nhead: a\nnodes:\n{nodes}gateway: {{{gateway}}}\n"


@pytest.mark.parametrize("user", ["nvidia", "_x", "anna@corp.example", "a.b-c@corp"])
def test_a_login_may_be_one_of_a_directory_service(user: str) -> None:
    inventory = parse_inventory(one_node(f'address: 10.0.0.1, user: {user}, host_key: "{KEY}"'))
    assert inventory.nodes["n"].user == user


@pytest.mark.parametrize(
    "user", ["@corp", "anna@", "anna@corp@corp", "anna@-oProxyCommand", r"CORP\\anna", "-o"]
)
def test_another_login_is_refused_with_the_form(user: str) -> None:
    (line,) = problems(one_node(f'address: 10.0.0.1, user: "{user}", host_key: "{KEY}"'))
    assert "nodes.n.user" in line
    assert "and @domain if its service has one" in line


@pytest.mark.parametrize(
    ("gateway", "taken"),
    [
        ("port: 8000", (("a", 8000),)),
        ("host: 10.0.0.9", ()),
        ("port: 0", ()),
        ('host: "0.0.0.0", port: 443, nodes: [c]', (("a", 443), ("c", 443))),
    ],
)
def test_the_endpoint_has_its_port_of_loopback_unless_it_listens_on_one_other_address(
    gateway: str, taken: tuple[tuple[str, int], ...]
) -> None:
    assert parse_inventory(spread(gateway)).endpoint_ports() == taken


@pytest.mark.parametrize(
    ("gateway", "taken"),
    [
        ("port: 0", (("a", 25938),)),
        ('host: "0.0.0.0", port: 0, nodes: all', (("a", 25938), ("b", 25938), ("c", 25938))),
        ("port: 8000", (("a", 8000),)),
    ],
)
def test_an_endpoint_at_any_port_keeps_its_present_one_on_every_node(
    gateway: str, taken: tuple[tuple[str, int], ...]
) -> None:
    assert parse_inventory(spread(gateway)).endpoint_ports(25938) == taken


@pytest.mark.parametrize(
    ("nodes", "entries"),
    [("all", ("b", "c")), ("[all]", ("b", "c")), ("[c]", ("c",)), ("[c, a]", ("c",)), ("[]", ())],
)
def test_the_endpoint_may_have_the_addresses_of_other_nodes(nodes: str, entries: tuple[str, ...]) -> None:
    inventory = parse_inventory(spread(f'host: "0.0.0.0", nodes: {nodes}'))
    assert inventory.entry_nodes == entries
    assert Inventory.model_validate_json(inventory.model_dump_json()) == inventory
    assert parse_inventory(to_yaml(inventory)) == inventory


@pytest.mark.parametrize(
    ("gateway", "says"),
    [
        ('nodes: all', "gateway.nodes: given, but a gateway on 127.0.0.1 is reached on the head only"),
        ('host: localhost, nodes: [b]', "a gateway on localhost is reached on the head only"),
        ('host: 127.9.9.9, nodes: [b]', "a gateway on 127.9.9.9 is reached on the head only"),
        ('host: "::1", nodes: [b]', "a gateway on ::1 is reached on the head only"),
        ('host: "0.0.0.0", nodes: [d]', 'gateway.nodes: unknown node "d". Known: a, b, c.'),
        ('host: "0.0.0.0", nodes: b', 'gateway.nodes: found "b". Expected `all`, or a list of nodes.'),
        ('host: "0.0.0.0", nodes: [b, b]', '"b" is given twice'),
        (
            'host: 10.0.0.1, nodes: all',
            "gateway.nodes: the inventory has no address of b, c that corresponds to 10.0.0.1. Expected `host: 0.0.0.0`",
        ),
    ],
)  # fmt: skip
def test_an_entry_that_could_not_work_is_refused(gateway: str, says: str) -> None:
    assert any(says in line for line in problems(spread(gateway)))


def test_an_entry_listens_where_the_gateway_does() -> None:
    """On the management network, or on the rail: never on a network on which the gateway is not."""
    inventory = parse_inventory(TWO_SPARKS)
    other = next(node for node in inventory.nodes if node != inventory.head)
    hosts = {
        "0.0.0.0": "0.0.0.0",
        "::": "::",
        inventory.nodes[inventory.head].address: inventory.nodes[other].address,
    }
    hosts |= {"192.168.101.10": "192.168.101.11", "192.168.7.7": None}
    for host, expected in hosts.items():
        gateway = Gateway(host=host, nodes=("all",))
        assert inventory.model_copy(update={"gateway": gateway}).entry_host(other) == expected, host
