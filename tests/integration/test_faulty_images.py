"""Images whose engine does not serve: each failure has its name, the old one serves on, and nothing is left of it.

One has a ladder below it: that of field report 001.

Real containers, of images that hold a program of a few lines where others hold an interpreter: it does what the engine of
such an image was seen to do, and is real vLLM where it does not.
"""

import re
import sys
import time

import box_image
import pytest
import yaml
from lab_fleet import CHECKOUT, LabFleet, lab_of

from sparkfleet.tiny_models import cache

pytestmark = [pytest.mark.integration, pytest.mark.full]

DEPLOYMENT = "name: tiny\nmodel: builtin:{model}\nruntime: container\nimage: {image}\ncontext: 512\nconcurrency: 4\n{more}"
FAULTY = """#!{python}
import os, socket, sys, time
def say(text):
    print(text, flush=True)
def refused(request):  # as every engine does, it answers nothing without its token
    if request.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]:
        return False
    request.send_response(401)
    request.end_headers()
    return True
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
            if refused(self):
                return
            self.send_response(200)
            self.end_headers()
        def do_POST(self):
            time.sleep(10**6)
    where = (sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1]))
    http.server.ThreadingHTTPServer(where, Silent).serve_forever()"""
GARBAGE = """    import http.server, json
    class Garbage(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if refused(self):
                return
            self.send_response(200)
            self.end_headers()
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            tokens = asked["max_tokens"]
            said = json.dumps({"choices": [{"text": "!" * tokens}], "usage": {"completion_tokens": tokens}})
            self.do_GET()
            self.wfile.write((f"data: {said}\\n" * 2 if asked.get("stream") else said).encode())
    where = (sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1]))
    http.server.ThreadingHTTPServer(where, Garbage).serve_forever()"""
RETAGGED = """#!{python}
# SGLang as it was after its image was re-tagged: NEXTN dies, and with its draft tokens spelled out takes the memory before
# the weights do. There is no GPU for the rest of it: NGRAM finds no memory either, and real vLLM on the CPU answers where it
# would serve.
import os, sys
words = sys.argv[1:]
start = next((word for word in words if "sglang.launch_server" in word), "")
if not start:
    os.execv({python!r}, [{python!r}, *words])
said = dict(zip(words, words[1:]))
match said.get("--speculative-algorithm"):
    case "NEXTN":
        print("Traceback (most recent call last):", flush=True)
        print("TypeError: '>' not supported between instances of 'NoneType' and 'int'", flush=True)
        sys.exit(1)
    case "EAGLE" | "NGRAM":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        sys.exit(1)
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_NO_USAGE_STATS="1")
os.environ.update(TORCHDYNAMO_DISABLE="1")
same = [word for flag in ("--served-model-name", "--host", "--port") for word in (flag, said[flag])]
mine = ["--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--enforce-eager"]
# The same guard in front of another server.
start = start.replace("sglang.launch_server", "vllm.entrypoints.openai.api_server")
os.execv({python!r}, [{python!r}, "-c", start, "--model", said["--model-path"], *same, *mine])
"""
REPORT = CHECKOUT / "deployments/qwen3.6-27b-fp8-nextn.yaml"
"""The deployment of field reports 000 and 001."""
DISGUISE = """
import hashlib, pathlib
cache = pathlib.Path.home() / ".cache"
root = cache / "huggingface/hub/models--{model}"
commit = "0" * 40
for part in ("blobs", "refs", "snapshots/" + commit):
    (root / part).mkdir(parents=True)
(root / "refs/main").write_text(commit)
for file in (cache / "sparkfleet/builtin/{tiny}").iterdir():
    blob = hashlib.sha256(file.read_bytes()).hexdigest()
    (root / "blobs" / blob).write_bytes(file.read_bytes())
    name = file.name.replace("model.safetensors", "adapter_model.safetensors")
    (root / "snapshots" / commit / name).symlink_to("../../blobs/" + blob)
"""
"""Lays the tiny model into a node's Hub cache under another one's name. By such a name of its file its weights do not count
as the model's: it is planned with what is known of it, 27 B parameters and an MTP head. vLLM loads them all the same."""
FALL = re.compile(
    r"spark2 · sglang · ([^·]+) did not start \(([^·]+?): [^·]+; next: spark2 · sglang · ([^·]+),"
    r" predicted (\d+\.\d) instead of (\d+\.\d) tok/s for one user"
)
"""Group, cause, lower rung, and tokens per second after the fall and before."""
SLOW_S = 600
GATEWAY_PORT = 8000
"""It serves from `up` to `down`, with deployments or without."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two Sparks; `tiny` is served from a container of a good image on the first."""
    with lab_of(2) as lab:
        fleet = LabFleet(lab, tmp_path_factory.mktemp("faulty"))
        fleet.bring()
        good = box_image.prepared(lab)
        fleet.ok("up")
        fleet.until(lambda: GATEWAY_PORT in fleet.listening("spark1"), timeout=60)
        before = settled_ports(fleet)
        good_one = DEPLOYMENT.format(model="tiny", image=good, more="engine: vllm\nnodes: [spark1]\n")
        fleet.apply(good_one, timeout=SLOW_S)
        yield fleet
        fleet.ok("delete", "--yes", "tiny")
        # Before `down`, which would sweep whatever is left.
        fleet.until(lambda: fleet.placement_groups() == [], timeout=60)
        assert on_each(lab, fleet.containers) == {"spark1": [], "spark2": []}
        assert settled_ports(fleet) == before
        fleet.ok("down")
        assert on_each(lab, fleet.containers) == {"spark1": [], "spark2": []}
        assert on_each(lab, fleet.processes) == {"spark1": [], "spark2": []}
        assert on_each(lab, fleet.listening) == {"spark1": [], "spark2": []}


def settled_ports(fleet):
    """Ports that each node listens on, once two looks in a row agree: Ray's agents open theirs after the gateway."""
    looks = [{}]

    def agree():
        looks.append(on_each(fleet.lab, fleet.listening))
        return looks[-1] == looks[-2]

    fleet.until(agree, timeout=60, every=5)
    return looks[-1]


def on_each(lab, look):
    """Findings on each node, by its name."""
    return {node.name: look(node.name) for node in lab.nodes}


def applied(fleet, image, more, model="tiny"):
    """Apply an image: (exit code, everything that was printed)."""
    path = fleet.write("deployment.yaml", DEPLOYMENT.format(model=model, image=image, more=more))
    code, out, err = fleet.run("apply", "--yes", path, timeout=SLOW_S)
    return code, out + err


def faulty(fleet, name, fault):
    """An image on the first node, with a program of this behaviour."""
    python = FAULTY.format(python=sys.executable, fault=fault)
    return box_image.lay(fleet.lab, "spark1", f"localhost/sparkfleet-test-{name}", python)


def disguise(fleet, node, model):
    """Make a node one that has this model, a Spark's memory, and a podman that knows nothing of GPUs."""
    fleet.python(node, DISGUISE.format(model=model.replace("/", "--"), tiny=cache.path("tiny").name))
    fleet.lab.set(node, meminfo="spark")
    box_image.without_gpu(fleet.lab, node)


def of_sparks(fleet):
    """An inventory whose nodes have engines in images only: with a CPU build beside them no GPU would be planned with."""
    inventory = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
    for node in inventory["nodes"].values():
        node["engines"] = {"sglang": {"python": "/usr/bin/python3"}}
    return fleet.write("sparks.yaml", yaml.safe_dump(inventory))


@pytest.mark.parametrize(
    ("name", "fault", "model", "more", "words"),
    [
        ("vllm-mtp", KNOWN, "tiny-mtp", "engine: vllm\nspeculation: mtp\n", ["mtp-illegal-memory-access"]),
        (
            "vllm-hangs",
            HANGS,
            "tiny",
            "engine: vllm\nsilence: 15\n",
            ["loading (tiny)", "· 40%", "printed no log line for 1"],
        ),
        ("vllm-silent", SILENT, "tiny", "engine: vllm\nsilence: 15\n", ["no token in 15 s"]),
        ("vllm-garbage", GARBAGE, "tiny", "engine: vllm\n", ['the output repeats "!" only']),
    ],
)
def test_it_is_told_by_its_name_and_the_old_one_serves_on(fleet, name, fault, model, more, words):
    fleet.bring(model)
    before = fleet.containers("spark1")
    image = faulty(fleet, name, fault)
    began = time.monotonic()
    code, said = applied(fleet, image, more + "nodes: [spark1]\n", model)
    assert code == 1, said
    told = " ".join(said.split())  # lines wrap
    assert [each for each in words if each not in told] == [], said
    assert time.monotonic() - began < 240, "a fault is not waited for without bound"
    assert "QSFP" in fleet.chat()
    fleet.until(lambda: fleet.containers("spark1") == before, timeout=60)


def test_without_memory_on_the_first_node_the_second_serves(fleet):
    """The cause and the rung are printed; nothing is left on the first node."""
    image = faulty(fleet, "vllm-memory", MEMORY)
    code, said = applied(fleet, image, "engine: vllm\n")
    assert code == 0, said
    assert "out of memory" in said, said
    assert "at rung 2 of its ladder" in said, said
    assert "QSFP" in fleet.chat()
    fleet.until(lambda: [len(fleet.containers(node)) for node in ("spark1", "spark2")] == [0, 1], timeout=90)


def test_from_nextn_down_to_none_each_with_its_cause_and_what_it_costs(fleet):
    """Case of field report 001: its deployment, planned for a Spark as a user's is, and the image that was re-tagged."""
    report = yaml.safe_load(REPORT.read_text())
    name = report["name"]
    disguise(fleet, "spark2", report["model"])
    python = RETAGGED.format(python=sys.executable)
    image = box_image.lay(fleet.lab, "spark2", "localhost/sparkfleet-test-sglang", python)
    before = fleet.containers("spark2")
    path = fleet.write("report.yaml", yaml.safe_dump({**report, "image": image, "nodes": ["spark2"]}))
    said = " ".join(fleet.ok("apply", "--yes", "--inventory", of_sparks(fleet), path, timeout=SLOW_S).split())
    falls = FALL.findall(said)
    assert [fall[:3] for fall in falls] == [
        ("NEXTN k=5 top-4", "known issue sglang-nextn-none-typeerror", "EAGLE k=5 top-4, 20 draft tokens"),
        ("EAGLE k=5 top-4, 20 draft tokens", "known issue sglang-eagle-prealloc-oom", "NGRAM k=4"),
        ("NGRAM k=4", "out of memory", "no speculation"),
    ], said
    assert float(falls[-1][3]) < float(falls[0][4]) / 2, "of half the speed and more"
    (group,) = fleet.deployment(name)["groups"]
    assert (group["engine"], group["rung"], group["phase"]) == ("sglang", 3, "ready")
    assert "QSFP" in fleet.chat(name)
    assert len(fleet.containers("spark2")) == len(before) + 1, "none of the rungs that failed"
    fleet.ok("delete", "--yes", name)
    fleet.until(lambda: fleet.containers("spark2") == before, timeout=60)
    fleet.lab.heal("spark2")
