"""TensorRT-LLM's way to start, on two simulated Sparks: everything is real but the engine, for which there is no GPU.

Real: the planner's choice, sparkfleet's scripts, rootless containers, OpenSSH, Open MPI and what its ranks send each other.
Stand-ins (`stand_ins/`): `trtllm-llmapi-launch`, which runs the server in the background of rank 0 without MPI's variables
and waits for MPI meanwhile, as the real one does; and `trtllm-serve`, each of whose tokens is a message to rank 1 and back:
the names of both nodes.

What the image has to make up for is the one user id that containers have here. OpenSSH as root wants others, so in the image
`root` is a user with another number, and the sshd runs as that in a namespace of its own. `PermitRootLogin` is therefore not
tried.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import box_image
import pytest
import yaml
from lab_fleet import LabFleet, lab_of
from secret_search import holders

from sparkfleet.specs.timeouts import Timeouts
from sparkfleet.tiny_models import cache

pytestmark = [pytest.mark.integration, pytest.mark.full]

STUCK_S = Timeouts().stuck_s

MODEL = f"/home/nvidia/.cache/sparkfleet/builtin/{cache.path('tiny').name}"
"""By its path: a built-in model by its name is for CPUs."""
DEPLOYMENT = (
    "name: tiny\nmodel: {model}\nengine: trtllm\nruntime: container\nimage: {image}\ncontext: 512\nconcurrency: {slots}\n"
    "speculation: none\nsilence: 60\nenv: {{TEST_SECRET: kept-from-arguments}}\n{more}"
)
ALONE = "nodes: [spark2]\n"
PAIR = "parallel: {tp: 2}\n"
RAILS = ("enp1s0f1np1", "enP2p1s0f1np1")
LAN = "enP7s7"
ADDRESSES = {"spark1": "192.168.100.10", "spark2": "192.168.100.11"}
NODES = tuple(ADDRESSES)
STAND_INS = Path(__file__).parent / "stand_ins"

# First of two lines for root: by the name comes a number that is not 0, and by 0 the name.
PASSWD = "root:x:1000:1000:root:/root:/bin/bash\nroot:x:0:0:root:/root:/bin/bash\n"
SHADOW = "root:*:20000:0:99999:7:::\n"
SSHD = """#!/bin/sh
sleep 4  # as long as a node that is slower than the other
LD_PRELOAD=/first/one_user.so exec /usr/sbin/sshd "$@"
"""
ONE_USER = "".join(
    f"unsigned {name}(void) {{ return 1000; }}\n" for name in ("getuid", "geteuid", "getgid", "getegid")
)
"""A container of a lab has one user id: with this, sshd as root takes itself for another user and changes to none."""
MPIRUN = '#!/bin/sh\nexec /usr/bin/mpirun.openmpi "$@"\n'
"""Debian's is a link into /etc, of which the image has next to nothing."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks, the image on the first. The tests go through one life, and each needs those before it."""
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("Open MPI is not installed: apt-get install openmpi-bin")
    with lab_of(2) as lab:
        for node in NODES:
            box_image.settle(lab, node)
            box_image.without_gpu(lab, node)
        programs = {f"first/{path.name}": path.read_text() for path in STAND_INS.iterdir()}
        own = {
            **programs,
            "first/sshd": SSHD,
            "first/one_user.so": compiled(ONE_USER, tmp_path_factory.mktemp("one_user")),
            "first/mpirun": MPIRUN,
            "etc/passwd": PASSWD,
            "etc/shadow": SHADOW,
        }
        name = "localhost/sparkfleet-test-trtllm"
        image = box_image.lay(lab, "spark1", name, own=own)
        if reason := box_image.refused(lab, "spark1", f"{name}:1"):
            pytest.skip(f"podman runs nothing in a lab here: {reason}")
        fleet = LabFleet(lab, tmp_path_factory.mktemp("trtllm"))
        inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
        # The environment of these tests has an engine for CPUs, which would make them nodes of that kind.
        for node in NODES:
            inventory["nodes"][node]["engines"] = {"trtllm": {"python": sys.executable}}
        fleet.write("inventory.yaml", yaml.safe_dump(inventory))
        fleet.bring()
        fleet.image = image
        fleet.ok("up")
        yield fleet
        fleet.ok("down")
        assert {node: fleet.containers(node) for node in NODES} == {"spark1": [], "spark2": []}
        assert {node: fleet.processes(node) for node in NODES} == {"spark1": [], "spark2": []}


def compiled(source, directory):
    """A shared library of a C source."""
    (directory / "source.c").write_text(source)
    argv = ("gcc", "-shared", "-fPIC", "-o", str(directory / "made.so"), str(directory / "source.c"))
    subprocess.run(argv, check=True, capture_output=True)
    return (directory / "made.so").read_bytes()


def as_root(lab, node, argv, stdin=""):
    done = lab.exec(node, argv, root=True, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def deployment(fleet, more, slots=4):
    return DEPLOYMENT.format(model=MODEL, image=fleet.image, more=more, slots=slots)


def serve(fleet, more, slots=4):
    """Apply, and wait until it is ready."""
    return fleet.apply(deployment(fleet, more, slots))


_RUNNING = """
import json, os, pathlib
found = []
for one in pathlib.Path("/proc").iterdir():
    if not one.name.isdigit():
        continue
    try:
        env = dict(pair.partition("=")[::2] for pair in (one / "environ").read_text(errors="replace").split("\\0"))
        argv = (one / "cmdline").read_text(errors="replace").split("\\0")[:-1]
        found.append({"pid": int(one.name), "argv": argv, "env": env, "cpus": len(os.sched_getaffinity(int(one.name)))})
    except OSError:
        pass
print(json.dumps(found))
"""


def running(fleet, node):
    """Every process of a node: its number, its arguments and its variables, and how many processors it may use."""
    return json.loads(as_root(fleet.lab, node, ["python3", "-c", _RUNNING]))


def the(fleet, node, program):
    """The one process of this program on a node."""
    (found,) = (
        process
        for process in running(fleet, node)
        if any(Path(word).name == program for word in process["argv"][:2])
    )
    return found


def inside(fleet, node):
    """Processes of ranks on a node, by their numbers: of supervisors, in containers, and what came in over SSH."""
    return {
        process["pid"]
        for process in running(fleet, node)
        if "SPARKFLEET_RANK" in process["env"] or "/run/sparkfleet-ssh/key" in " ".join(process["argv"])
    }


def told(fleet):
    """Settings of rank 0's server: its arguments, and its options file."""
    return json.loads(fleet.engine_get("/told")[1])


def listens(fleet, node, program):
    """Addresses that a program listens on, but for the node's own sshd."""
    lines = as_root(fleet.lab, node, ["ss", "-ltnpH"]).splitlines()
    found = {line.split()[3] for line in lines if f'"{program}"' in line}
    return {address for address in found if not address.endswith(":22")}


def comes_back(fleet, before, gone_s=30):
    """Wait until the group has ended, and is ready with other processes on both nodes."""
    fleet.until(lambda: not fleet.is_ready(), timeout=gone_s)
    fleet.until(fleet.is_ready, timeout=240)
    left = {node: sorted(before[node] & inside(fleet, node)) for node in NODES}
    assert left == {"spark1": [], "spark2": []}
    assert "spark1+spark2" in fleet.chat()


def test_alone_it_is_given_its_options_in_a_file(fleet):
    serve(fleet, ALONE)
    assert "spark2" in fleet.chat()
    heard = told(fleet)
    argv = heard["argv"]
    assert argv[argv.index("--tp_size") + 1] == "1"
    options = yaml.safe_load(heard["options"])
    assert options["kv_cache_config"] == {"free_gpu_memory_fraction": 0.9, "max_tokens": 2048}
    assert options["cuda_graph_config"] == {"max_batch_size": 4}
    assert fleet.containers("spark1") == []
    fleet.ok("delete", "--yes", "tiny")


def test_two_ranks_answer_as_one_over_the_rails(fleet):
    serve(fleet, PAIR)
    assert [rank["node"] for rank in fleet.group()["ranks"]] == ["spark1", "spark2"]
    before = fleet.traffic("spark2")
    assert "spark1+spark2" in fleet.chat()
    after = fleet.traffic("spark2")
    moved = {name: after[name] - before[name] for name in (*RAILS, LAN)}
    rail = max(moved[name] for name in RAILS)
    assert rail > 1_000_000, "32 tokens of 64 KiB each way"
    assert moved[LAN] < rail / 20, "Ray's heartbeats alone, more of them on a slow machine"


def test_both_are_told_the_same_and_each_has_its_own_containers_variables(fleet):
    first, second = (the(fleet, node, "trtllm-llmapi-launch") for node in NODES)
    words = [process["argv"] for process in (first, second)]
    at = words[0].index("/run/sparkfleet/serve.sh") + 1
    assert [word[:at] + word[at + 1 :] for word in words[:1]] == [
        word[:at] + word[at + 1 :] for word in words[1:]
    ]
    assert words[0][at + 1 :] == told(fleet)["argv"]
    for rank, process in enumerate((first, second)):
        env = process["env"]
        assert env["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert env["SPARKFLEET_RANK"].endswith(f"/g2/0/{rank}")
        assert env["TEST_SECRET"] == "kept-from-arguments"
        assert env["NCCL_SOCKET_IFNAME"] == env["OMPI_MCA_btl_tcp_if_include"] == RAILS[0]
        assert env["UCX_NET_DEVICES"] == ",".join(RAILS)
        assert env["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"


def test_no_rank_is_bound_to_a_processor(fleet):
    """Open MPI would bind each of two to one."""
    for node in NODES:
        shell = fleet.lab.exec(
            node, ["python3", "-c", "import os; print(len(os.sched_getaffinity(0)))"]
        ).stdout
        assert the(fleet, node, "trtllm-llmapi-launch")["cpus"] == int(shell)


def keys(fleet, node):
    """The directory of the newest group's keys on a node."""
    found = fleet.lab.exec(node, ["sh", "-c", "ls -td ~/.local/state/sparkfleet/*/ranks/*/keys"]).stdout
    return found.split()[0]


def test_mpi_meets_on_the_rail(fleet):
    """It would choose among all addresses of a node that it is not kept from: docker's bridge has the same everywhere."""
    (ssh,) = (p["argv"] for p in running(fleet, "spark1") if p["argv"][:1] == ["/usr/bin/ssh"])
    (where,) = set(re.findall(r"tcp6?://([^:]+):", " ".join(ssh)))
    assert where == ADDRESSES["spark1"]


def login(fleet, *options, address=ADDRESSES["spark2"]):
    """Result of a login on the worker's sshd from the leader's node: exit code and output."""
    (port,) = {listener.rpartition(":")[2] for listener in listens(fleet, "spark2", "sshd")}
    fixed = (
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "IdentitiesOnly=yes",
    )
    words = [word for option in fixed for word in ("-o", option)]
    argv = ["ssh", "-F", "none", "-p", port, *words, *options, f"root@{address}", "hostname"]
    done = fleet.lab.exec("spark1", argv)
    return done.returncode, done.stdout + done.stderr


def test_the_workers_sshd_is_on_the_rail_and_for_the_groups_key_alone(fleet):
    (where,) = listens(fleet, "spark2", "sshd")
    assert where.rpartition(":")[0] == ADDRESSES["spark2"]
    assert listens(fleet, "spark1", "sshd") == set()
    code, said = login(fleet, "-i", f"{keys(fleet, 'spark1')}/id_ed25519")
    assert (code, "spark2" in said) == (0, True), said
    made = fleet.lab.exec("spark1", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/another"])
    assert made.returncode == 0, made.stderr
    for options in (
        ("-i", "/tmp/another"),
        ("-o", "PubkeyAuthentication=no"),
        ("-o", "BatchMode=no", "-o", "PreferredAuthentications=password,keyboard-interactive"),
    ):
        code, said = login(fleet, *options)
        assert code == 255, said
        assert "Permission denied (publickey)" in said
    management = next(node.address for node in fleet.lab.nodes if node.name == "spark2")
    assert "Connection refused" in login(fleet, address=management)[1]


def test_the_private_key_is_nowhere_but_in_files_for_its_owner(fleet):
    secrets = {
        as_root(fleet.lab, node, ["cat", f"{keys(fleet, node)}/id_ed25519"]).splitlines()[4] for node in NODES
    }
    assert len(secrets) == 1, "both nodes have the same key, and nobody has sent it"
    for node in NODES:
        files, processes = holders(fleet.lab, node, *secrets)
        assert processes == []
        assert {Path(path).name for path, _ in files} == {"id_ed25519", "key"}
        assert {mode for _, mode in files} == {0o600}


def test_what_the_deployment_sets_is_in_no_argument_and_in_no_file_of_the_ranks(fleet):
    for node in NODES:
        assert not [p for p in running(fleet, node) if "kept-from-arguments" in " ".join(p["argv"])]
        found = fleet.lab.exec(
            node,
            [
                "sh",
                "-c",
                "grep -rl kept-from-arguments ~/.local/state/sparkfleet/*/ranks ~/.local/state/sparkfleet/*/logs",
            ],
        )
        assert found.stdout == ""


def test_a_groups_actor_that_dies_is_replaced_and_both_ranks_are_adopted(fleet):
    """The port of the sshd is another one in the new actor's command, and must not make it another rank."""
    before = {node: inside(fleet, node) for node in NODES}
    (actor,) = (p["pid"] for p in running(fleet, "spark1") if "ray::ServeReplica:tiny" in " ".join(p["argv"]))
    as_root(fleet.lab, "spark1", ["kill", "-9", str(actor)])
    fleet.until(lambda: (now := fleet.ready_group()) is None or now["adopted"], timeout=60)
    fleet.until(lambda: (now := fleet.ready_group()) and now["adopted"])
    assert {node: inside(fleet, node) for node in NODES} == before
    assert "spark1+spark2" in fleet.chat()


def test_a_worker_whose_container_is_killed_ends_the_group_and_it_comes_back(fleet):
    before = {node: inside(fleet, node) for node in NODES}
    fleet.lab.exec("spark2", ["podman", "kill", *fleet.containers("spark2")])
    comes_back(fleet, before)


def test_an_mpirun_that_is_killed_leaves_nothing_of_either_rank(fleet):
    before = {node: inside(fleet, node) for node in NODES}
    as_root(fleet.lab, "spark1", ["kill", "-9", str(the(fleet, "spark1", "mpirun.openmpi")["pid"])])
    comes_back(fleet, before)


def test_a_server_that_dies_ends_the_group_though_its_launcher_would_wait(fleet):
    before = {node: inside(fleet, node) for node in NODES}
    began = time.monotonic()
    as_root(fleet.lab, "spark1", ["kill", "-9", str(the(fleet, "spark1", "trtllm-serve")["pid"])])
    fleet.until(lambda: not fleet.is_ready(), timeout=STUCK_S)
    assert time.monotonic() - began < STUCK_S, "by its exit, and not because nothing answers any more"
    comes_back(fleet, before)


def test_a_server_that_does_not_start_is_told_by_its_cause_and_the_old_one_serves_on(fleet):
    before = {node: fleet.containers(node) for node in NODES}
    began = time.monotonic()
    path = fleet.write("fails.yaml", deployment(fleet, PAIR).replace("TEST_SECRET", "STAND_IN_FAILS"))
    code, out, err = fleet.run("apply", "--yes", path)
    assert code == 1, out + err
    assert "out of memory" in out, out
    assert time.monotonic() - began < 60, "before its silence would have told"
    assert "spark1+spark2" in fleet.chat()
    fleet.until(lambda: {node: fleet.containers(node) for node in NODES} == before, timeout=60)


def test_two_generations_share_the_nodes_until_the_new_one_answers(fleet):
    """Their sshds listen on ports of their own."""
    (old,) = listens(fleet, "spark2", "sshd")
    out = serve(fleet, PAIR, slots=3)
    assert "ready" in out
    assert fleet.group()["generation"] == 4
    fleet.until(lambda: len(fleet.containers("spark2")) == 1, timeout=90)
    (new,) = listens(fleet, "spark2", "sshd")
    assert new != old
    assert told(fleet)["argv"][told(fleet)["argv"].index("--max_batch_size") + 1] == "3"
    assert "spark1+spark2" in fleet.chat()


def test_delete_leaves_nothing(fleet):
    before = {node: inside(fleet, node) for node in NODES}
    fleet.ok("delete", "--yes", "tiny")
    for node in NODES:
        fleet.until(lambda node=node: fleet.containers(node) == [], timeout=60)
        fleet.until(lambda node=node: not before[node] & inside(fleet, node), timeout=30)
        for program in ("sshd", "orted", "mpirun.openmpi", "python3"):
            assert listens(fleet, node, program) == set()
        words = ("trtllm", "conmon", "supervisor", "orted", "mpirun")
        assert [line for line in fleet.processes(node) if any(word in line for word in words)] == []
