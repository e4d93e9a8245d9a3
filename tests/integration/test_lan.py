"""Two simulated Sparks without a cable between them: they meet on the management network, where Ray has TLS."""

import json
import os

import pytest
import yaml
from lab_fleet import LabFleet, lab_of
from pair_fleet import PairFleet

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.fleet]

HANDSHAKE = """
import json, socket, ssl, sys
host, port, authority, certificate, key = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
context.set_alpn_protocols(["h2"])
if certificate:
    context.load_cert_chain(certificate, key)
with context.wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=host) as ours:
    ours.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + b"\\0\\0\\0\\4\\0\\0\\0\\0\\0")
    ours.settimeout(5)
    print(json.dumps({"version": ours.version(), "answer": len(ours.recv(64))}))
"""
PLAIN = """
import json, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as ours:
    ours.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + b"\\0\\0\\0\\4\\0\\0\\0\\0\\0")
    ours.settimeout(5)
    try:
        print(json.dumps(ours.recv(64).hex()))
    except ConnectionResetError:
        print(json.dumps(""))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A fleet whose inventory has no links, up."""
    directory = tmp_path_factory.mktemp("lan")
    os.chmod(directory, 0o755)
    with lab_of(2, shares=(*LabFleet.shares(), directory)) as lab:
        made = PairFleet(lab, directory, real=False)
        inventory = yaml.safe_load((directory / "inventory.yaml").read_text())
        made.write("inventory.yaml", yaml.safe_dump({**inventory, "links": []}))
        made.bring()
        made.ok("up")
        yield made
        made.end()


def asked(fleet, node, program, *words):
    """The answer of a program that connects from a node."""
    return fleet.lab.exec(node, ["python3", "-I", "-c", program, *words])


def head_of(fleet):
    """Address of Ray on the head, and the directory of the certificates on every node."""
    (root,) = fleet.lab.exec("spark1", ["sh", "-c", "ls -d ~/.local/state/sparkfleet/*"]).stdout.split()
    address = json.loads(fleet.lab.exec("spark1", ["cat", f"{root}/address.json"]).stdout)["ray"]
    host, _, port = address.rpartition(":")
    return host, port, f"{root}/ray-tls"


def test_ray_answers_only_those_with_a_certificate_of_the_fleet(fleet):
    host, port, tls = head_of(fleet)
    own = [f"{tls}/authority.pem", f"{tls}/certificate.pem", f"{tls}/key.pem"]
    answer = json.loads(asked(fleet, "spark2", HANDSHAKE, host, port, *own).stdout)
    assert answer["version"] == "TLSv1.3"
    assert answer["answer"] > 0, "gRPC's settings: the connection is accepted"
    without = asked(fleet, "spark2", HANDSHAKE, host, port, own[0], "", "")
    assert "CERTIFICATE_REQUIRED" in without.stderr.upper() or '"answer": 0' in without.stdout, without
    assert json.loads(asked(fleet, "spark2", PLAIN, host, port).stdout) == ""
    modes = fleet.lab.exec("spark2", ["stat", "-c", "%a", tls, *own]).stdout.split()
    assert modes == ["700", "600", "600", "600"]


def test_a_model_on_the_other_node_serves_and_comes_back_after_its_reboot(fleet):
    fleet.apply(fleet.spec("nodes: [spark2]\n"))
    fleet.until(lambda: fleet.ready_group("tiny"), timeout=120)
    assert fleet.ok("ask", "tiny", "What is a rail?").strip()
    fleet.lab.kill("spark2")
    fleet.lab.boot("spark2")
    fleet.until(lambda: all(node["joined"] for node in fleet.status()["nodes"]), timeout=120)
    fleet.until(lambda: fleet.run("ask", "tiny", "What is a rail?")[0] == 0, timeout=180)


def test_the_head_comes_back_with_the_same_authority(fleet):
    _, _, tls = head_of(fleet)
    before = fleet.lab.exec("spark2", ["cat", f"{tls}/authority.pem"]).stdout
    fleet.lab.kill("spark1")
    fleet.lab.boot("spark1")
    fleet.until(lambda: len(fleet.fleet_status().get("nodes", ())) == 2, timeout=180)
    fleet.until(lambda: all(node["joined"] for node in fleet.status()["nodes"]), timeout=180)
    assert fleet.lab.exec("spark1", ["cat", f"{tls}/authority.pem"]).stdout == before
    assert "BEGIN CERTIFICATE" in before
