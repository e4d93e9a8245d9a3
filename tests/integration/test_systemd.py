"""The life of an owner's two Sparks on a real distribution: netplan, NetworkManager, sudo's password, nftables, systemd."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import machine_image
import pytest
from booted_machines import BootedMachines, until
from fleet_commands import FleetCommands
from node_environment import node_environment

from sparkfleet.fabric.rails_helper import NETPLAN_FILE, TABLE
from sparkfleet.install.removal_program import OF_ROOT

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.xdist_group("machines")]

NAME = f"np{os.getpid() % 10_000}"
FIRST, SECOND = "enp1s0f1np1", "enP2p1s0f1np1"
RAILS = {
    "spark1": {FIRST: "192.168.100.10/24", SECOND: "192.168.101.10/24"},
    "spark2": {FIRST: "192.168.100.11/24", SECOND: "192.168.101.11/24"},
}
SPEECH = Path(__file__).parent / "stand_ins" / "speech.py"
SLOW_S = 600
_WITH_A_PASSWORD = f"""
set -e
printf '#!/bin/sh\\necho {machine_image.PASSWORD}\\n' > ~/.askpass && chmod 700 ~/.askpass
export SUDO_ASKPASS=$HOME/.askpass
sudo() {{ command sudo -A "$@"; }}
"""
"""Before commands that a person pastes: the dialogue for sudo's password."""


class Owner(FleetCommands):
    """Two machines, and the command line of their owner."""

    every_s = 2.0

    def __init__(self, machines, directory):
        self.machines, self.directory = machines, directory

    def run(self, *args, timeout=SLOW_S):
        """Run a verb to its end: (exit code, stdout, stderr)."""
        done = subprocess.run(
            [sys.executable, "-m", "sparkfleet", *args],
            cwd=self.directory,
            env={**os.environ, "SPARKFLEET_HOME": str(self.directory / "state"), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def refused(self, *args):
        """Run a verb that must end with 1; its standard error."""
        code, out, err = self.run(*args)
        assert code == 1, out
        return err

    def init(self):
        """`init`, as a person who has compared the host keys."""
        keys = [word for node in self.machines.nodes for word in ("--host-key", node.host_key)]
        return self.ok(
            *("init", *(node.address for node in self.machines.nodes), *keys, "--user", machine_image.USER),
            *("--identity-file", str(self.machines.key_file), "--fleet", NAME, "--yes"),
        )

    def paste(self, node, commands):
        """Commands that sparkfleet printed, word by word, in a login of the node's user."""
        done = self.machines.ssh(node, "bash", "-s", stdin=_WITH_A_PASSWORD + "\n".join(commands) + "\n")
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"

    def rails(self, node):
        """Addresses of the rails with their MTU, by netdev."""
        links = json.loads(self.machines.root(node, "ip -j addr show").stdout)
        return {
            link["ifname"]: (
                [
                    f"{one['local']}/{one['prefixlen']}"
                    for one in link["addr_info"]
                    if one["family"] == "inet"
                ],
                link["mtu"],
            )
            for link in links
            if link["ifname"] in (FIRST, SECOND)
        }

    def tables(self, node):
        """Names of the tables of nftables."""
        return self.machines.root(node, "nft list tables").stdout.split()[2::3]

    def deployments(self):
        code, out, _ = self.run("status", "--json")
        return json.loads(out).get("deployments", ()) if code == 0 else ()

    def serves(self):
        """Wait until the workload answers on its node, and the controller has it as ready."""
        ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:5005/health', timeout=5)"
        asked = f'python3 -c "{ask}"'
        self.until(lambda: self.machines.root("spark2", asked).returncode == 0, timeout=SLOW_S)
        self.until(lambda: (self.deployment("speech") or {}).get("state") == "ready", timeout=SLOW_S)

    def diagnosis(self):
        """The ends of the journals, for a failure."""
        last = "journalctl --boot --no-pager --lines 40; systemctl --failed --no-pager; ip address"
        return "\n".join(
            f"=== {node.name}\n{self.machines.root(node.name, last).stdout}" for node in self.machines.nodes
        )


DELIVERED = {FIRST: ([], 1500), SECOND: ([], 1500)}


def healthy(node):
    """As planned: address and full MTU on both rails."""
    return {netdev: ([address], 9000) for netdev, address in RAILS[node].items()}


# Each stage builds on the one above; tests of a stage stand in the file before those of the next.


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """Two Sparks as they are delivered: NetworkManager asks for DHCP on the rails, without an answer."""
    directory = tmp_path_factory.mktemp("owner")
    python = node_environment(directory)
    directory.chmod(0o755)
    shares = (directory / "environment", sys.prefix, sys.base_prefix, SPEECH.parent)
    with BootedMachines(directory / "machines", machine_image.base(), name=NAME, shares=shares) as machines:
        owner = Owner(machines, directory)
        owner.python = python
        assert owner.init().count("found by ipv6") == 2
        yield owner


@pytest.fixture(scope="module")
def permitted(delivered):
    """The helper is installed by the commands that `fabric apply` prints."""
    err = delivered.refused("fabric", "apply", "--yes")
    for node in RAILS:
        printed = err.partition("Run this once on each of spark1, spark2")[2]
        delivered.paste(node, [line.strip() for line in printed.splitlines() if line.startswith("  ")])
    return delivered


@pytest.fixture(scope="module")
def addressed(permitted):
    """The rails have their addresses, the inventory has them, and the firewall is loaded beside the owner's own rules."""
    assert "Kept" in permitted.ok("fabric", "apply", "--yes")
    permitted.init()
    permitted.machines.root("spark1", "systemctl enable --now nftables.service")
    assert "Kept" in permitted.ok("fabric", "firewall", "--apply", "--yes")
    return permitted


@pytest.fixture(scope="module")
def serving(addressed):
    """A fleet that serves a workload on the second Spark."""
    inventory = addressed.directory / "inventory.yaml"
    inventory.write_text(f"{inventory.read_text()}environment: {addressed.python}\n")
    addressed.ok("up")
    workload = {
        "name": "speech",
        "model": "speech/one",
        "engine": "custom",
        "command": [str(addressed.python), str(SPEECH), "127.0.0.1", "5005"],
        "port": 5005,
        "health": "/health",
        "memory": "1 GiB",
        "nodes": ["spark2"],
    }
    addressed.ok("apply", "--yes", addressed.write("speech.yaml", json.dumps(workload)))
    addressed.serves()
    return addressed


def test_the_commands_that_fabric_apply_prints_permit_its_helper_and_nothing_else(permitted):
    for node in RAILS:
        helper = ("sudo", "-n", "/usr/local/sbin/sparkfleet-rails", "show")
        assert permitted.machines.ssh(node, *helper).returncode == 0
        assert permitted.machines.ssh(node, "sudo", "-n", "id").returncode != 0


def test_a_netplan_file_that_netplan_refuses_is_named_and_nothing_changes(permitted):
    """Netplan's own warning about its mode comes first, and `netplan apply` of the way back fails by it, too."""
    permitted.machines.root("spark1", "echo 'network: [' > /etc/netplan/90-broken.yaml")
    try:
        err = permitted.refused("fabric", "apply", "--yes")
    finally:
        permitted.machines.root("spark1", "rm /etc/netplan/90-broken.yaml")
    assert "spark1: netplan refuses the files that are there" in err
    assert "/etc/netplan/90-broken.yaml" in err
    assert {node: permitted.rails(node) for node in RAILS} == dict.fromkeys(RAILS, DELIVERED)


def test_a_file_of_the_owner_that_wins_over_the_plan_is_named_and_all_is_undone(permitted):
    own = f"network: {{version: 2, ethernets: {{{FIRST}: {{mtu: 1500}}}}}}"
    permitted.machines.root("spark1", f"umask 077; echo '{own}' > /etc/netplan/90-own.yaml")
    try:
        err = permitted.refused("fabric", "apply", "--yes")
    finally:
        permitted.machines.root("spark1", "rm /etc/netplan/90-own.yaml; netplan apply")
    assert f"{FIRST} of spark1 does not reach 192.168.100.11 with packets of 9000 bytes" in err
    assert f"spark1: /etc/netplan/90-own.yaml also configures {FIRST}" in err
    assert {node: permitted.rails(node) for node in RAILS} == dict.fromkeys(RAILS, DELIVERED)


def test_a_change_that_nobody_confirms_is_undone_and_the_cable_found_again(permitted):
    ports = [
        {"netdev": netdev, "address": address, "mtu": 9000} for netdev, address in RAILS["spark1"].items()
    ]
    helper = ("sudo", "-n", "/usr/local/sbin/sparkfleet-rails")
    done = permitted.machines.ssh("spark1", *helper, "apply", "5", stdin=json.dumps({"ports": ports}))
    assert done.returncode == 0, done.stderr
    until(lambda: permitted.rails("spark1") == DELIVERED)
    assert permitted.machines.root("spark1", f"test -e {NETPLAN_FILE}").returncode == 1
    # A rail that has just come up has no link-local address for a second or two.
    until(lambda: permitted.init().count("found by ipv6") == 2)


def test_rails_get_their_addresses_once(addressed):
    assert {node: addressed.rails(node) for node in RAILS} == {node: healthy(node) for node in RAILS}
    assert addressed.machines.root("spark1", f"stat -c %a {NETPLAN_FILE}").stdout.strip() == "600"
    assert "No change: every rail has its address." in addressed.ok("fabric", "apply")
    assert (addressed.directory / "inventory.yaml").read_text().count("{netdev: ") == 4


def test_the_firewall_is_loaded_again_with_the_owners_own_rules(addressed):
    assert "no change" in addressed.ok("fabric", "firewall")
    addressed.machines.root("spark1", "systemctl restart nftables.service")
    until(lambda: TABLE in addressed.tables("spark1"))


def test_up_makes_a_service_of_the_user_that_needs_no_login(serving):
    for node in RAILS:
        listed = ("systemctl", "--user", "list-unit-files", "--no-legend", f"sparkfleet-{NAME}-*")
        assert serving.machines.ssh(node, *listed).stdout.split()[1:2] == ["enabled"]
        shown = ("loginctl", "show-user", machine_image.USER, "--property=Linger")
        assert serving.machines.ssh(node, *shown).stdout.strip() == "Linger=yes"


@pytest.mark.parametrize(("node", "end"), [("spark1", "reboot"), ("spark2", "cut_power")])
def test_a_machine_that_boots_again_has_its_rails_and_serves(serving, node, end):
    getattr(serving.machines, end)(node)
    if end == "cut_power":
        serving.machines.boot(node)
    assert serving.rails(node) == healthy(node)
    strict = serving.machines.root(node, f"cat /proc/sys/net/ipv4/conf/{FIRST}/arp_ignore").stdout
    assert strict.strip() == "1", "as /etc/sysctl.d has it"
    assert TABLE in serving.tables(node)
    serving.serves()
    assert serving.machines.root(node, "systemctl --failed --no-legend").stdout == ""


def test_uninstall_prints_what_root_has_to_remove_and_nothing_is_left(serving):
    serving.ok("down")
    out = serving.ok("uninstall", "--yes")
    for node in RAILS:
        printed = re.search(rf"^{node}$(.*?)(?=^\S|\Z)", out, re.MULTILINE | re.DOTALL).group(1)
        serving.paste(node, re.findall(r"^  root's  (.*)$", printed, re.MULTILINE))
        serving.paste(node, re.findall(r"^  stays   linger of .*: `([^`]*)`", printed, re.MULTILINE))
        until(lambda at=node: not any(addresses for addresses, _ in serving.rails(at).values()))
        states = f"/home/{machine_image.USER}/.local/s*/sparkfleet"
        left = serving.machines.root(node, f"ls -d {' '.join(OF_ROOT)} {states} 2>/dev/null")
        assert left.stdout == ""
        assert TABLE not in serving.tables(node)
        assert serving.machines.root(node, "ls /var/lib/systemd/linger").stdout == ""
