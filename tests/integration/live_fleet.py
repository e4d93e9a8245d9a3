"""A real fleet of one node: real Ray, real vLLM on the CPU, the real command line, in a state directory of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
from fleet_commands import FleetCommands
from stand_in import faked, stand_in

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes
from sparkfleet.runtime.environment import FLEET_LABEL
from sparkfleet.runtime.files.fleet_paths import FleetPaths

SPARKFLEET = str(Path(sys.executable).parent / "sparkfleet")

INVENTORY = """
fleet: test
head: this
nodes:
  this: {{address: local, engines: {{vllm: {{python: {python}}}}}}}
gateway: {{port: 0}}
"""

TINY = """
name: tiny
model: builtin:tiny
context: 2048
concurrency: 16
"""


class Fleet(FleetCommands):
    """One fleet, driven by its command line.

    Args:
        directory: for its state and the files of the tests.
        real: whether no engine is a fake one, see `pair_fleet`.
    """

    def __init__(self, directory, real=True):
        self.directory = directory
        self.real = real
        self.paths = FleetPaths(directory / "state" / "test")
        self.key = ""
        self.endpoint = ""
        self.write("inventory.yaml", INVENTORY.format(python=stand_in(directory)))

    def spec(self, more=""):
        """`tiny`, by a fake engine unless all are real."""
        return TINY + more if self.real else faked(TINY + more)

    def popen(self, *args, **kwargs):
        return subprocess.Popen(
            [SPARKFLEET, *args],
            cwd=self.directory,
            env={**os.environ, "SPARKFLEET_HOME": str(self.directory / "state"), "COLUMNS": "200"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **kwargs,
        )

    def run(self, *args, timeout=300):
        """Run a verb to its end: (exit code, stdout, stderr)."""
        with self.popen(*args) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise AssertionError(
                    f"{args} did not end in {timeout} s\n{out}\n{err}\n{self.diagnosis()}"
                ) from None
        return process.returncode, out, err

    def json(self, *args):
        """The JSON that a reading verb prints."""
        return json.loads(self.ok(*args, "--json"))

    def apply(self, *files):
        """Apply, and take the key if this is the first time."""
        out = self.ok("apply", "--yes", *files)
        self.take_key(out)
        self.endpoint = re.search(r"Endpoint: (\S+)", out).group(1)
        return out

    def take_key(self, out):
        """Use the key that a verb has printed, if it has created the first one."""
        if found := re.search(r"sk-sf-\S+", out):
            self.key = found.group()

    def chat(self, question, name="tiny"):
        """One question over the gateway, greedy."""
        body = {
            "model": name,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 60,
        }
        headers = {"authorization": f"Bearer {self.key}"}
        response = httpx.post(f"{self.endpoint}/chat/completions", json=body, headers=headers, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]

    def metrics(self):
        """The controller's page for Prometheus."""
        api = json.loads(self.paths.address.read_text())["api"]
        headers = {"authorization": f"Bearer {self.paths.api_token.read_text()}"}
        return httpx.get(api + "/metrics", headers=headers, timeout=30).text

    def engine_page(self, url, path="/metrics"):
        """An engine's own page for Prometheus, with the token for that."""
        headers = {"authorization": f"Bearer {self.paths.metrics_token.read_text()}"}
        return httpx.get(url + path, headers=headers, timeout=60).text

    def deployments(self):
        """Answer of the controller about every deployment, without the seconds that a command line costs."""
        api = json.loads(self.paths.address.read_text())["api"]
        headers = {"authorization": f"Bearer {self.paths.api_token.read_text()}"}
        with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=30) as client:
            return client.get(api + "/v1/fleet", headers=headers).json()["deployments"]

    def ranks(self):
        """Live processes of this fleet's ranks."""
        return processes.labelled({FLEET_LABEL: self.paths.label})

    def everything(self):
        """Live processes of this fleet: ranks, Ray, and ours in Ray."""
        return [*self.ranks(), *processes.labelled({LABEL: self.paths.label})]

    def diagnosis(self):
        """The ends of the logs, for a failure."""
        return "\n".join(f"--- {log.name}\n{_end(log)}" for log in sorted(self.paths.logs.glob("*.log")))


def _end(log, lines=8):
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
