"""A real fleet of simulated Sparks: real sshd, real Ray on every node, real vLLM on the CPU, the real command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import known_models
import pytest
import yaml
from fleet_commands import FleetCommands

import sparkfleet
from sparkfleet.gateway.access.keys import engine_token
from sparkfleet.lab import Lab, LabError
from sparkfleet.lab.lifecycle import check_host
from sparkfleet.tiny_models import cache

SPARKFLEET = str(Path(sys.executable).parent / "sparkfleet")
CHECKOUT = Path(sparkfleet.__file__).parent.parent


UNCOMPILED = "env: {TORCHDYNAMO_DISABLE: '1'}\n"
"""For a deployment. vLLM compiles its samplers when the first token is asked for: 20 s of a start of two ranks on nodes with
a new /tmp, and 8 s of every later one."""


_ENGINE_SECRET = "cd ~/.local/state/sparkfleet/*/ && cat engine.tokens engine.secret 2>/dev/null | head -n 1"
"""The secret of the tokens of engines that start now."""
PLACED = """
import json, ray
from ray.util import placement_group_table
ray.init(address="{address}", _node_ip_address="{host}", logging_level="ERROR", log_to_driver=False)
print(json.dumps([group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]))
"""


class LabFleet(FleetCommands):
    """A lab, and the command line run from the machine that it is on.

    Args:
        lab: the simulated Sparks.
        directory: for files of the test.
        own: further text of the inventory.
    """

    every_s = 0.5

    def __init__(self, lab, directory, own=f"environment: {sys.executable}\n"):
        self.lab = lab
        self.directory = directory
        self.key = ""
        self._endpoint = ""
        self.write("inventory.yaml", lab.inventory() + own)
        for node in lab.nodes:
            # A clone in the home directory, as the quick start makes it: cron starts the fleet there after a reboot.
            lab.exec(node.name, ["mkdir", "-p", "sparkfleet"])

    @classmethod
    def shares(cls):
        """Directories that nodes have to see: this environment and this checkout."""
        return (Path(sys.prefix), CHECKOUT)

    def run(self, *args, timeout=400):
        """Run a verb to its end: (exit code, stdout, stderr)."""
        done = subprocess.run(
            [SPARKFLEET, *args],
            cwd=self.directory,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def apply(self, text, name="deployment.yaml", options=(), timeout=400):
        """Apply a deployment, and take the key if this is the first time."""
        out = self.ok("apply", "--yes", *options, self.write(name, text), timeout=timeout)
        if found := re.search(r"sk-sf-\S+", out):
            self.key = found.group()
        return out

    def status(self):
        return json.loads(self.ok("status", "--json"))

    def endpoint(self):
        """Address of its endpoint on the head: the same as long as there is a fleet."""
        self._endpoint = self._endpoint or self.status()["endpoint"]
        return self._endpoint

    def fleet_status(self):
        """The whole status; {} if no controller answers. Asked on the head: a command line costs seconds."""
        done = self.lab.exec(self.head, ["python3", "-I", "-c", _STATUS])
        return json.loads(done.stdout or "{}")

    def deployments(self):
        """The status of each deployment."""
        return self.fleet_status().get("deployments", ())

    def killed(self, args, after_s):
        """Begin a verb, and kill it after some seconds; 0: run it to its end."""
        if not after_s:
            self.run(*args)
            return
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([SPARKFLEET, *args], cwd=self.directory, **quiet)
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def group(self, name="tiny"):
        """The group of the newest generation: an older one may still be draining."""
        return max(self.deployment(name)["groups"], key=lambda group: group["generation"])

    def ready_group(self, name="tiny"):
        """The group of the newest generation; None as long as the deployment is not ready. Both by one look: what two
        of them see may not have been at one time."""
        found = self.deployment(name)
        if found is None or found["state"] != "ready":
            return None
        return max(found["groups"], key=lambda group: group["generation"])

    def containers(self, node, tool="podman"):
        """Ids of all containers of a node, ended ones too."""
        return self.lab.exec(node, [tool, "ps", "--all", "--quiet", "--no-trunc"]).stdout.split()

    def is_ready(self, name="tiny"):
        found = self.deployment(name)
        return found is not None and found["state"] == "ready"

    @property
    def head(self):
        """The head that the inventory names."""
        return yaml.safe_load((self.directory / "inventory.yaml").read_text())["head"]

    def chat(self, name="tiny", question="What is a rail?", tokens=32):
        """One question over the gateway on the head, asked there with the head's own client."""
        body = {
            "model": name,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        return self.ask("/chat/completions", body)["choices"][0]["message"]["content"]

    def ask(self, path, body):
        """POST to the gateway from the head node; the answer as JSON. The key goes through standard input."""
        code = (
            "import json,sys,urllib.request as u, urllib.error\n"
            "url,key,body=json.load(sys.stdin)\n"
            "r=u.Request(url,json.dumps(body).encode(),{'authorization':'Bearer '+key,'content-type':'application/json'})\n"
            "try:\n print(u.urlopen(r,timeout=300).read().decode())\n"
            "except urllib.error.HTTPError as error:\n sys.exit(f'{error}: {error.read().decode()}')"
        )
        url = self.endpoint() + path
        done = self.lab.exec(
            self.head, ["python3", "-c", code], stdin=json.dumps([url, self.key, body]), timeout_s=320
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.diagnosis()}"
        return json.loads(done.stdout)

    def engine_get(self, path, name="tiny"):
        """GET of an engine itself, on its node and with its token: (status, text)."""
        group = self.group(name)
        secret = self.lab.exec(group["node"], ["sh", "-c", _ENGINE_SECRET]).stdout.strip()
        token = engine_token(secret.encode(), f"{name}/g{group['generation']}/{group['replica']}")
        told = json.dumps([group["url"] + path, token])
        done = self.lab.exec(group["node"], ["python3", "-I", "-c", _GET], stdin=told)
        assert done.returncode == 0, done.stderr
        status, text = json.loads(done.stdout)
        return status, text

    def python(self, node, code, timeout_s=120):
        """Run Python in this environment on a node, as its user; standard output."""
        done = self.lab.exec(node, [sys.executable, "-c", code], timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ray_says(self, program):
        """Output, as JSON, of a program that joins the fleet's Ray on the head. It is given `address` and `host`."""
        head = self.head
        find = "import pathlib;print(next(pathlib.Path.home().glob('.local/state/sparkfleet/*/address.json')).read_text())"
        address = json.loads(self.python(head, find))["ray"]
        prologue = (
            "import os, pathlib\n"
            "from sparkfleet.controlplane.ray.ray_process import ray_environment\n"
            "from sparkfleet.runtime.files.fleet_paths import FleetPaths\n"
            "root = next(pathlib.Path.home().glob('.local/state/sparkfleet/*/ray.token')).parent\n"
            "os.environ.update(ray_environment(FleetPaths(root), os.environ))\n"
        )
        code = prologue + program.format(address=address, host=address.rpartition(":")[0])
        return json.loads(self.python(head, code).splitlines()[-1])

    def placement_groups(self):
        """Names of those that Ray holds."""
        return self.ray_says(PLACED)

    def bring(self, model="tiny"):
        """Lay a built-in model into every node's cache, where it would otherwise be trained, and what vLLM knows of it."""
        subprocess.run(
            [sys.executable, "-m", "sparkfleet.tiny_models", "build", model], check=True, timeout=900
        )
        self._lay(cache.path(model), "~/.cache/sparkfleet/builtin")
        self._lay(known_models.find_out(cache.path(model)), "~/.cache/vllm")

    def _lay(self, directory, place):
        """Copy a directory of this machine into one of every node's user."""
        tar = ["tar", "-C", str(directory.parent), "-cf", "-", directory.name]
        archive = subprocess.run(tar, capture_output=True, check=True).stdout
        for node in self.lab.nodes:
            argv = [sys.executable, "-c", _UNPACK, place]
            subprocess.run(self.lab.argv(node.name, argv), input=archive, check=True, timeout=60)

    def traffic(self, node):
        """Bytes received and sent by each netdev of a node."""
        lines = self.lab.exec(node, ["cat", "/proc/net/dev"]).stdout.splitlines()[2:]
        counted = {}
        for line in lines:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            counted[name.strip()] = int(fields[0]) + int(fields[8])
        return counted

    def processes(self, node):
        """Commands of everything that runs on a node, but for what a Spark always runs."""
        listed = self.lab.exec(node, ["ps", "-eo", "user:20,args", "--no-headers"]).stdout.splitlines()
        # podman, once asked for its version, leaves its pause process until the next boot: catatonit, or itself without it.
        # sshd's own process of a connection ends a moment after the command line that made it.
        own = re.compile(r"ps -eo|catatonit| podman$| sshd(-session)?: ")
        return [line for line in listed if line.startswith("nvidia") and not own.search(line)]

    def listening(self, node):
        """TCP ports that a node listens on, but for SSH's and those that Ray gives its workers, which come and go."""
        lines = self.lab.exec(node, ["ss", "-Hltn"]).stdout.splitlines()
        ports = {int(line.split()[3].rpartition(":")[2]) for line in lines}
        return sorted(ports - {22, *range(10002, 20000)})

    def diagnosis(self):
        """Status of the fleet, and the ends of the logs on all nodes, for a failure."""
        said = ["\n".join(self.run(verb)[1].splitlines()[-40:]) for verb in ("status", "events")]
        for node in self.lab.nodes:
            found = self.lab.exec(
                node.name,
                [
                    "sh",
                    "-c",
                    'for f in ~/.local/state/sparkfleet/*/logs/*.log; do echo "--- $f"; tail -n 8 "$f"; done',
                ],
            )
            said.append(f"=== {node.name}\n{found.stdout[-6000:]}")
        return "\n".join(said)


_STATUS = """
import json, pathlib, sys, time, urllib.request
until = time.monotonic() + 5
while time.monotonic() < until:
    try:
        (file,) = pathlib.Path.home().glob(".local/state/sparkfleet/*/address.json")
        api, token = json.loads(file.read_text())["api"], (file.parent / "api.token").read_text()
        asked = urllib.request.Request(api + "/v1/fleet", headers={"authorization": "Bearer " + token})
        sys.stdout.write(urllib.request.urlopen(asked, timeout=20).read().decode())
        break
    except (OSError, ValueError):
        time.sleep(0.3)
"""
"""Answer of the controller; nothing if none answers for some seconds."""

_GET = """
import json, sys, urllib.request
url, token = json.load(sys.stdin)
asked = urllib.request.Request(url, headers={"authorization": "Bearer " + token})
with urllib.request.urlopen(asked, timeout=10) as answer:
    print(json.dumps([answer.status, answer.read().decode()]))
"""

_UNPACK = """
import os, sys, tarfile
place = os.path.expanduser(sys.argv[1])
os.makedirs(place, exist_ok=True)
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    archive.extractall(place)
"""


def lab_of(nodes, *, shares=None, **fields):
    """A lab whose nodes see `shares`, if not this environment. Skips with the reason if this machine cannot have one."""
    try:
        check_host()
    except LabError as error:
        pytest.skip(error.what)
    return Lab.up(nodes=nodes, shares=LabFleet.shares() if shares is None else shares, **fields)
