"""Every alert fires on a real fleet and clears, and dashboards have data: real Prometheus, Alertmanager, Ray and gateway.

Two simulated Sparks with fake engines as real processes. The rules are the shipped ones with shorter waits and windows, made
from the same values (`quick`). Faults are what a node's kernel, driver, cables, processes and files really show; what is not
there on a simulated Spark (heat, an Xid) is what its files and commands report; a plan's prediction is that of
`predicted_plan.py`.
"""

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import predicted_plan
import pytest
import yaml
from alert_watch import HEAD, OTHER, Watch
from asking import Asking
from node_faults import STATE, as_root
from pair_fleet import LINK, TINY
from shown import ON_DEMAND, ONLY_REAL, OUTSIDE, without_data

from sparkfleet.controlplane.controller_failures import LIST_LATE_S
from sparkfleet.lab.meminfo import meminfo
from sparkfleet.telemetry.alerts import EVERY_ALERT
from sparkfleet.units import GIB

pytestmark = [pytest.mark.integration, pytest.mark.any_engine, pytest.mark.full, pytest.mark.timeout(1250)]
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
BIND = 'printf %s "$2" > "$3"; mount --bind "$3" "$1"'
BYTES = """
import socket, sys, time
end = time.monotonic() + float(sys.argv[2])
if sys.argv[1] == "take":
    server = socket.create_server(("", 5999)); server.settimeout(20)
    peer, _ = server.accept()
    while peer.recv(1 << 20):
        pass
else:
    peer = socket.create_connection((sys.argv[1], 5999))
    block = bytes(1 << 20)
    while time.monotonic() < end:
        for _ in range(15):
            peer.sendall(block)
        time.sleep(0.1)
"""
"""Sends 150 MB/s over a rail."""


@pytest.fixture
def watch(pair):
    """Two watched Sparks that serve nothing."""
    one = Watch(pair)
    yield one
    one.end()


class Bound:
    """Files of a node with other contents, until its end."""

    def __init__(self, fleet):
        self._fleet, self._mounted, self.last = fleet, [], ""

    def put(self, node, path, text):
        """Show this text in the place of a file."""
        own = f"/run/alarm-{len(self._mounted)}"
        as_root(self._fleet, node, "sh", "-ec", BIND, "sh", path, text, own)
        self._mounted.append((node, path))
        self.last = own

    def close(self):
        """Show what is there."""
        for node, path in reversed(self._mounted):
            as_root(self._fleet, node, "umount", "--lazy", path)


def command(fleet, node, name, text):
    """Let a node have another program of this name; "": its own again."""
    place = f"/usr/local/bin/{name}"
    script = 'mkdir -p /usr/local/bin; if [ -n "$1" ]; then printf %s "$1" > "$2"; chmod 755 "$2"; else rm -f "$2"; fi'
    as_root(fleet, node, "sh", "-ec", script, "sh", text, place)


def low_memory(available):
    """/proc/meminfo with so many bytes available."""
    return re.sub(r"MemAvailable: *\d+", f"MemAvailable: {available // 1024}", meminfo("spark", 0))


def nodes_are_ill(fleet, watch):
    """Memory, GPU, kernel, disk, rails of nodes on which nothing runs."""
    bound = Bound(fleet)
    ends = fleet.lab.layout.cable(LINK).rails[1].ends
    netdev = next(end.netdev for end in ends if end.node == OTHER)
    alerts = (
        "PowerWedge", "GpuHot", "GpuThrottled", "GpuXid", "GpuAllocationFailed", "KernelLogUnread", "MemoryCritical",
        "MemoryLow", "MemoryPressure", "NodeHot", "DiskLow", "RailDown", "RailFlaps", "RailLopsided", "RailErrors",
        "KeyExpires",
    )  # fmt: skip
    try:
        with watch.fires(*alerts):
            watch.attempt(fleet.ok, "keys", "create", "short", "--expires", "3d")
            watch.attempt(fleet.lab.set, OTHER, {"clock": "wedged", "disk": "1G"})
            watch.attempt(fleet.lab.set, HEAD, {"temperature": "93", "clock": "throttled"})
            watch.attempt(as_root, fleet, HEAD, "sh", "-ec", HOT_ZONE)
            watch.attempt(command, fleet, OTHER, "journalctl", KERNEL)
            watch.attempt(command, fleet, HEAD, "journalctl", UNREADABLE)
            watch.attempt(bound.put, OTHER, "/proc/meminfo", low_memory(2 * GIB))
            watch.attempt(bound.put, HEAD, "/proc/meminfo", low_memory(5 * GIB))
            watch.attempt(bound.put, OTHER, "/proc/pressure/memory", WAITS)
            watch.attempt(bound.put, OTHER, f"/sys/class/net/{netdev}/statistics/rx_errors", "100\n")
            watch.attempt(flaps, fleet)
            watch.attempt(sends_over_one_rail, fleet, 25, lambda count: grow(fleet, bound.last, count))
        with watch.fires("GpuUnread"):
            fleet.lab.set(OTHER, {"gpu": "missing"})
        unread = f"{OTHER}: the GPU cannot be read: nvidia-smi finds no GPU"
        assert [one for one in fleet.fleet_status()["warnings"] if one.startswith(unread)]
    finally:
        bound.close()
        # An alert that was missed has its cause here: the log was not read, or what was read went no further.
        readings = fleet.lab.exec(OTHER, ["cat", "/tmp/kernel-log-readings"])
        print(
            "seconds since the boot at each reading of the kernel's log:",
            readings.stdout.split(),
            readings.stderr,
        )
        for node in (HEAD, OTHER):
            command(fleet, node, "journalctl", EMPTY)
        as_root(fleet, HEAD, "umount", "/sys/class/thermal")
        fleet.lab.mend(LINK)
        for node in (HEAD, OTHER):
            fleet.lab.heal(node)
        fleet.ok("keys", "revoke", "short")
    return (*alerts, "GpuUnread")


HOT_ZONE = (
    "mount -t tmpfs zones /sys/class/thermal; mkdir /sys/class/thermal/thermal_zone0;"
    " echo 97000 > /sys/class/thermal/thermal_zone0/temp"
)
WAITS = "some avg10=60.00 avg60=9.00 avg300=2.00 total=9\nfull avg10=50.00 avg60=9.00 avg300=2.00 total=9\n"
EMPTY = "#!/bin/sh\nexit 1\n"
"""A journalctl that finds nothing."""
UNREADABLE = "#!/bin/sh\necho 'Failed to open the journal' >&2\nexit 1\n"
KERNEL = """#!/bin/sh
read -r up idle < /proc/uptime
echo "$up" >> /tmp/kernel-log-readings
echo "[$up] kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=4321, name=python3"
echo "[$up] kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"
"""


def flaps(fleet):
    """Rail 1 is pulled and plugged twice, and pulled."""
    for _ in range(2):
        fleet.lab.cut(LINK, 1)
        time.sleep(2.5)
        fleet.lab.mend(LINK, 1)
        time.sleep(2.5)
    fleet.lab.cut(LINK, 1)


def grow(fleet, path, count):
    """Count more errors in a file of the other node."""
    as_root(fleet, OTHER, "sh", "-ec", 'printf "%s\\n" "$1" > "$2"', "sh", str(100 + 50 * count), path)


def sends_over_one_rail(fleet, seconds, meanwhile):
    """Bytes from the head to the other node over rail 0, for some seconds."""
    end = next(end for end in fleet.lab.layout.cable(LINK).rails[0].ends if end.node == OTHER)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    take = [sys.executable, "-c", BYTES, "take", str(seconds)]
    give = [sys.executable, "-c", BYTES, end.address.partition("/")[0], str(seconds)]
    with subprocess.Popen(fleet.lab.argv(OTHER, take), **quiet) as taking:
        time.sleep(1)
        with subprocess.Popen(fleet.lab.argv(HEAD, give), **quiet) as giving:
            count = 0
            while giving.poll() is None:
                meanwhile(count := count + 1)
                time.sleep(0.5)
        taking.wait(30)


def fake(fleet, name, what, document):
    """Set a fault or values of the metrics of a deployment's fake engine."""
    group = fleet.group(name)
    argv = ["curl", "-sf", "-X", "PUT", f"{group['url']}/fake/{what}", "-d", json.dumps(document)]
    done = fleet.lab.exec(group["node"], argv)
    assert done.returncode == 0, done


def drafts(fleet, seconds, share, counts):
    """Let an engine count draft tokens for some seconds, of which this share is accepted; with a long queue."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counts[0] += 100
        counts[1] += 100 * share
        values = {
            "vllm:num_requests_waiting": 9,
            "vllm:spec_decode_num_draft_tokens_total": counts[0],
            "vllm:spec_decode_num_accepted_tokens_total": counts[1],
        }
        fake(fleet, "slow", "metrics", values)
        time.sleep(0.5)


SLOW = TINY.replace("name: tiny", "name: slow") + f"nodes: [{HEAD}]\n"
SLOW += "speculation: {method: ngram, tokens: 3}\n"
SLOW += "env: {FAKE_ENGINE: '1', FAKE_START_S: '0', FAKE_SAYS: '', FAKE_ITL_MS: '120'}\n"
PROMISED = 20.0, 80.0
"""tok/s of one stream and of four, as the lower ends of a prediction: of an engine with 50 ms between its tokens."""


def is_slower_than_predicted(fleet):
    """The same engine as a generation of a plan that promises more."""
    argv = [sys.executable, predicted_plan.__file__, "slow", *map(str, PROMISED)]
    done = fleet.lab.exec(HEAD, argv, timeout_s=60)
    assert done.returncode == 0, done.stderr
    fleet.until(lambda: (fleet.ready_group("slow") or {}).get("generation") == int(done.stdout))


def an_engine_is_ill(fleet, watch):
    """One that is slow alone and under load, has a queue, counts drafts in vain, hangs, ends again and again."""
    slow = ("QueueLong", "AcceptanceCollapsed", "SlowUnderLoad")
    dead = ("RestartingOften", "RestartBreakerOpen", "DeploymentFailed", "GroupDown", "RequestsFail")
    fleet.apply(SLOW, name="slow.yaml")
    fleet.until(lambda: fleet.ready_group("slow"))
    with watch.fires("SlowerThanPredicted"):
        is_slower_than_predicted(fleet)
    with ExitStack() as stack:
        stack.enter_context(Asking(fleet, "slow", streams=4, tokens=40))
        counts = [0, 0]
        with watch.fires(*slow, within=40):
            drafts(fleet, 30, 0.8, counts)
            drafts(fleet, 25, 0.02, counts)
        with watch.fires("NoTokenProgress", within=45):
            fake(fleet, "slow", "fault", {"kind": "hang"})
        with watch.fires(*dead):
            ends_again_and_again(fleet)
    fleet.ok("delete", "--yes", "slow")
    return ("SlowerThanPredicted", *slow, "NoTokenProgress", *dead)


WRONG = TINY.replace("name: tiny", "name: wrong") + f"nodes: [{HEAD}]\n"
WRONG += "env: {FAKE_ENGINE: '1', FAKE_START_S: '2', FAKE_FAULT: garble}\n"


def an_engine_answers_nonsense(fleet, watch):
    """Its only character is `!`, as of a model with NaN logits: the canary stops it before it serves."""
    with watch.fires("WrongOutput", within=60):
        code, out, err = fleet.run("apply", "--yes", fleet.write("wrong.yaml", WRONG))
        assert code == 1, (out, err)
        assert 'repeats "!" only' in out + err
    fleet.ok("delete", "--yes", "wrong")
    return ("WrongOutput",)


def ends_again_and_again(fleet):
    """Kill an engine until its group is given up."""
    end = time.monotonic() + 150
    while time.monotonic() < end:
        found = fleet.deployment("slow")
        if found["state"] == "failed":
            return
        for pid in fleet.engines(HEAD):
            fleet.lab.exec(HEAD, ["kill", "-9", str(pid)])
        time.sleep(1)


def a_start_and_a_node_are_lost(fleet, watch):
    """The plan's choice does not start, and the node of the next rung loses power."""
    fleet.breaks(HEAD, MEMORY)
    try:
        with watch.fires("LowerRung"):
            fleet.apply(fleet.anew(fleet.spec()))
    finally:
        fleet.breaks(HEAD, "")
    assert fleet.group()["node"] == OTHER
    with watch.fires("NodeLost", "GroupSilent", "TargetMissing"):
        fleet.lab.kill(OTHER)
    fleet.lab.boot(OTHER)
    fleet.until(
        lambda: all(node["joined"] for node in fleet.fleet_status().get("nodes") or [{"joined": False}]),
        timeout=180,
    )
    fleet.ok("delete", "--yes", "tiny")
    return "LowerRung", "NodeLost", "GroupSilent", "TargetMissing"


def the_controller_is_ill(fleet, watch):
    """It does not answer for some seconds; Ray Serve does not; a file that a node's next start needs cannot be read."""
    with watch.fires("ControllerGone", within=10), stopped(fleet, "ray::ControllerActor"):
        time.sleep(6)
    with stopped(fleet, "ray::ServeController"), watch.fires("ControllerTrouble", within=LIST_LATE_S + 30):
        pass
    mode = 'chmod "$2" "$1"/*/engine.secret'
    with watch.fires("ControllerWarning"):
        fleet.lab.exec(OTHER, ["sh", "-c", mode, "sh", STATE, "000"])
    fleet.lab.exec(OTHER, ["sh", "-c", mode, "sh", STATE, "600"])
    return "ControllerGone", "ControllerTrouble", "ControllerWarning"


@contextmanager
def stopped(fleet, words):
    """A process of the head, by the beginning of its command line, hangs inside."""
    pids = [str(pid) for pid, line in fleet.listed(HEAD).items() if line.startswith(words)]
    assert len(pids) == 1, fleet.listed(HEAD)
    fleet.lab.exec(HEAD, ["kill", "-STOP", *pids])
    try:
        yield
    finally:
        fleet.lab.exec(HEAD, ["kill", "-CONT", *pids])


def certificate(fleet, days):
    """A certificate for so many days on the head."""
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k -out c -subj /CN=a"
    script = f"cd ~ && {make} -days $1"
    done = fleet.lab.exec(HEAD, ["sh", "-c", f"{script} && mv k key.pem && mv c cert.pem", "sh", str(days)])
    assert done.returncode == 0, done.stderr


def a_certificate_ends(fleet, watch):
    """The owner's certificate has five days left, and is renewed."""
    before = (fleet.directory / "inventory.yaml").read_text()
    own = yaml.safe_load(before)
    gateway = own.get("gateway") or {}
    tls = {"cert": "/home/nvidia/cert.pem", "key": "/home/nvidia/key.pem"}
    certificate(fleet, 5)
    try:
        with watch.fires("CertificateExpires"):
            fleet.write("inventory.yaml", yaml.safe_dump(own | {"gateway": {**gateway, "tls": tls}}))
            fleet.ok("up")
        certificate(fleet, 365)
        watch.clears("CertificateExpires", within=60)
    finally:
        port = int(fleet.status()["endpoint"].split(":")[2].partition("/")[0])
        fleet.write("inventory.yaml", yaml.safe_dump(own | {"gateway": {"port": port, **gateway}}))
        fleet.ok("up")
        fleet.write("inventory.yaml", before)


def test_every_alert_fires_on_its_fault_and_clears_and_every_panel_has_shown_something(pair, watch):
    pair.key = json.loads(pair.ok("keys", "create", "asker", "--json"))["key"]
    over = []

    def stage(faults):
        """Its faults, while the alerts of the stage before clear."""
        after = faults(pair, watch)
        watch.clears(*over)
        over[:] = after or ()

    try:
        for faults in (
            nodes_are_ill, an_engine_answers_nonsense, an_engine_is_ill, a_start_and_a_node_are_lost, the_controller_is_ill,
            a_certificate_ends,
        ):  # fmt: skip
            watch.attempt(stage, faults)
        watch.clears(*over)
        empty = without_data(watch.query, ONLY_REAL | OUTSIDE | ON_DEMAND, during="40m")
    finally:
        pair.ok("keys", "revoke", "asker")
    assert watch.broken == []
    assert watch.missed == []
    assert watch.stuck == []
    assert {one.name for one in EVERY_ALERT} - watch.all_fired == set()
    assert empty == []
