"""Images whose engine does not serve: each failure is told by its name, the old one serves on, and nothing is left of it.

Real containers, of images that hold a program of a few lines where others hold an interpreter: it does what the engine of
such an image was seen to do, and is real vLLM where it does not.
"""

import re
import sys
import time

import box_image
import pytest
from lab_fleet import LabFleet, lab_of

pytestmark = pytest.mark.integration

DEPLOYMENT = "name: tiny\nmodel: builtin:tiny\nruntime: container\nimage: {image}\ncontext: 512\nconcurrency: 4\n{more}"
FAULTY = """#!{python}
import os, socket, sys, time
def say(text):
    print(text, flush=True)
if any(engine in word for word in sys.argv for engine in ("vllm.entrypoints", "sglang.launch_server")):
    say("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02,  1.50s/it]")
{fault}
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
KNOWN = """    say("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    sys.exit(1)"""
MEMORY = """    if socket.gethostname() == "spark1":
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        sys.exit(1)"""
HANGS = """    time.sleep(10**6)"""
SILENT = """    import http.server
    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def do_POST(self):
            time.sleep(10**6)
    where = (sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1]))
    http.server.ThreadingHTTPServer(where, Silent).serve_forever()"""
SLOW_S = 600


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks; `tiny` is served from a container of a good image on the first."""
    with lab_of(2) as lab:
        good = box_image.prepared(lab)
        fleet = LabFleet(lab, tmp_path_factory.mktemp("faulty"))
        fleet.bring()
        fleet.ok("up")
        out = applied(fleet, good, "engine: vllm\nnodes: [spark1]\n")[1]
        fleet.key = re.search(r"sk-sf-\S+", out).group()
        yield fleet
        fleet.ok("down")
        assert {node.name: containers(fleet, node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}
        assert {node.name: fleet.processes(node.name) for node in lab.nodes} == {"spark1": [], "spark2": []}


def applied(fleet, image, more):
    """Apply an image: (exit code, everything that was said)."""
    path = fleet.write("deployment.yaml", DEPLOYMENT.format(image=image, more=more))
    code, out, err = fleet.run("apply", "--yes", path, timeout=SLOW_S)
    return code, out + err


def faulty(fleet, name, fault):
    """An image on the first node, with a program of this behaviour."""
    python = FAULTY.format(python=sys.executable, fault=fault)
    return box_image.lay(fleet.lab, "spark1", f"localhost/sparkfleet-test-{name}", python)


def containers(fleet, node):
    """Ids of all containers of a node, ended ones too."""
    return fleet.lab.exec(node, ["podman", "ps", "--all", "--quiet", "--no-trunc"]).stdout.split()


@pytest.mark.parametrize(
    ("name", "fault", "more", "words"),
    [
        ("vllm-mtp", KNOWN, "engine: vllm\nspeculation: mtp\n", "mtp-illegal-memory-access"),
        ("vllm-hangs", HANGS, "engine: vllm\nsilence: 15\n", "said nothing for 1"),
        ("vllm-silent", SILENT, "engine: vllm\nsilence: 15\n", "no token in 15 s"),
    ],
)
def test_it_is_told_by_its_name_and_the_old_one_serves_on(fleet, name, fault, more, words):
    before = containers(fleet, "spark1")
    image = faulty(fleet, name, fault)
    began = time.monotonic()
    code, said = applied(fleet, image, more + "nodes: [spark1]\n")
    assert code == 1, said
    assert words in said, said
    assert time.monotonic() - began < 240, "a fault is not waited for without bound"
    assert "QSFP" in fleet.chat()
    fleet.until(lambda: containers(fleet, "spark1") == before, timeout=60)


def test_without_memory_on_the_first_node_the_second_serves(fleet):
    """The cause and the rung are told; what lies on the first node is given back."""
    image = faulty(fleet, "vllm-memory", MEMORY)
    code, said = applied(fleet, image, "engine: vllm\n")
    assert code == 0, said
    assert "out of memory" in said, said
    assert "at rung 2 of its ladder" in said, said
    assert "QSFP" in fleet.chat()
    fleet.until(lambda: [len(containers(fleet, node)) for node in ("spark1", "spark2")] == [0, 1], timeout=90)
