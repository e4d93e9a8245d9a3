"""`observe up` with real containers of podman and of Docker, from images of this machine's programs: no registry is used.

Prometheus and Alertmanager are Debian's. Grafana is not packaged: a program of ten lines answers in its place, if its
password, its address and its provisioning are as Grafana needs them.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import docker_engine
import pytest
from container_values import limits
from fake_channel import FakeChannel
from open_client import OpenClient

from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet.observe import containers as module
from sparkfleet.fleet.observe.containers import observe_down, observe_up
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime.ports import free_port
from sparkfleet.telemetry.observe_containers import PARTS, ObserveImages, ObservePorts

DIRECTORIES = [
    "etc",
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "usr",
    "prometheus",
    "alertmanager",
    "var",
    "var/lib",
    "var/lib/grafana",
]
GRAFANA = """
import http.server, os
password = open(os.environ["GF_SECURITY_ADMIN_PASSWORD__FILE"]).read()
assert len(password) >= 20 and os.environ["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
assert os.listdir("/etc/grafana/provisioning/datasources") and len(os.listdir("/etc/grafana/dashboards")) == 4
open("/var/lib/grafana/mine", "w").close()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
http.server.HTTPServer((os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])), Answer).serve_forever()
"""
ENTRYPOINTS = {
    "prometheus": ["/usr/bin/prometheus"],
    "alertmanager": ["/usr/bin/prometheus-alertmanager"],
    "grafana": ["/usr/bin/python3", "-c", GRAFANA],
}


DOCKER = """#!/bin/sh
[ "$1" != run ] || {{ shift; set -- run --volume /usr:/usr:ro "$@"; }}
exec {real} "$@"
"""
"""Shows /usr in every container, for which Docker has no setting."""


class Watching(NamedTuple):
    """A container tool of this test alone, with the three images."""

    tool: str
    images: ObserveImages

    def containers(self):
        """Names of what runs."""
        return set(ask(self.tool, "ps", "--format", "{{.Names}}").stdout.split())


def ask(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def make_image(tool, directory, part):
    """An image of empty directories and links into /usr, which every container of this store sees. Its name."""
    name = f"localhost/sparkfleet-observe-{part}:1"
    with tarfile.open(directory / f"{part}.tar", "w") as tar:
        for path in DIRECTORIES:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{path}"
            tar.addfile(entry)
        users = b"root:x:0:0::/:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(users)
        tar.addfile(entry, BytesIO(users))
    change = f"ENTRYPOINT {json.dumps(ENTRYPOINTS[part])}"
    done = ask(tool, "import", "--change", change, str(directory / f"{part}.tar"), name)
    assert done.returncode == 0, done.stderr
    return name


@pytest.fixture(params=["podman", "docker"])
def watching(request, monkeypatch):
    """The tool, with the images in it; it is the only one that works."""
    if os.geteuid() != 0:
        pytest.skip(
            "a user's podman maps ids of containers, which needs newuidmap and a range in /etc/subuid"
        )
    with tempfile.TemporaryDirectory(prefix=request.param, dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "bin").mkdir()
        real = shutil.which("docker")
        monkeypatch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
        with {"podman": podman, "docker": docker}[request.param](directory, monkeypatch, real):
            images = {part: make_image(request.param, directory, part) for part in PARTS}
            yield Watching(request.param, ObserveImages(**images))


@contextmanager
def podman(directory, monkeypatch, real):
    storage = f'driver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
    (directory / "storage.conf").write_text(f"[storage]\n{storage}")
    (directory / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = {limits()}\nvolumes = ["/usr:/usr:ro"]\n[engine]\n'
        f'runtime = "runc"\nevents_logger = "file"\nlock_type = "file"\ntmp_dir = "{directory}/tmp"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(directory / "storage.conf"))
    monkeypatch.setenv("CONTAINERS_CONF", str(directory / "containers.conf"))
    put(directory / "bin" / "docker", "#!/bin/sh\nexit 1\n")
    yield
    ask("podman", "rm", "--all", "--force")
    ask("podman", "rmi", "--all", "--force")


@contextmanager
def docker(directory, monkeypatch, real):
    put(directory / "bin" / "docker", DOCKER.format(real=real))
    with docker_engine.running(directory) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        yield


def put(path, script):
    path.write_text(script)
    path.chmod(0o755)


class Client(OpenClient):
    """A controller's client, as far as the files need one."""

    address = HeadAddress(
        ray="127.0.0.1:1", api="http://127.0.0.1:9", gateway_host="127.0.0.1", gateway_port=1
    )


def session_of(root):
    async def controller():
        return Client()

    async def head_root():
        return str(root)

    inventory = SimpleNamespace(fleet="watched", head="this")
    return SimpleNamespace(
        inventory=inventory, head=LocalChannel("this"), controller=controller, head_root=head_root
    )


async def get(port, path):
    def read():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read()

    return await asyncio.to_thread(read)


@pytest.mark.full
async def test_three_containers_start_keep_their_data_and_end(watching, tmp_path):
    (tmp_path / "metrics.token").write_text("token")
    session = session_of(tmp_path)
    ports = ObservePorts(prometheus=free_port(), alertmanager=free_port(), grafana=free_port())
    names = {f"sparkfleet-watched-{part}" for part in PARTS}
    works = []
    try:
        host = await observe_up(session, ports, works.append, watching.images)
        assert (host.tool, tuple(works), watching.containers()) == (watching.tool, PARTS, names)
        rules = json.loads(await get(ports.prometheus, "/api/v1/rules"))["data"]["groups"]
        assert len(rules) == 7
        url = f"http://127.0.0.1:{ports.alertmanager}/api/v2/alerts"
        async with asyncio.timeout(30):
            while url not in (await get(ports.prometheus, "/api/v1/alertmanagers")).decode():
                await asyncio.sleep(0.2)
        config = json.loads(await get(ports.prometheus, "/api/v1/status/config"))["data"]["yaml"]
        assert "http://127.0.0.1:9/targets" in config
        password = (tmp_path / "observe" / "grafana.password").read_text()
        assert (tmp_path / "observe" / "grafana.password").stat().st_mode & 0o077 == 0
        (tmp_path / "observe" / "alertmanager.yml").write_text(
            "# mine\nroute: {receiver: me}\nreceivers: [{name: me}]\n"
        )

        await observe_up(session, ports, works.append, watching.images)  # once more: in place of the first
        assert watching.containers() == names
        assert (tmp_path / "observe" / "grafana.password").read_text() == password
        status = json.loads(await get(ports.alertmanager, "/api/v2/status"))
        assert "receiver: me" in status["config"]["original"]
    finally:
        await observe_down(session)
    assert not watching.containers() & names
    assert (tmp_path / "observe" / "data" / "grafana" / "mine").exists()
    assert (tmp_path / "observe" / "data" / "prometheus" / "wal").exists()


async def test_a_program_that_does_not_answer_is_named_with_its_log(watching, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkfleet.fleet.observe.containers.READY_S", 1.0)
    (tmp_path / "metrics.token").write_text("token")
    session = session_of(tmp_path)
    ports = ObservePorts(prometheus=free_port(), alertmanager=free_port(), grafana=free_port())
    wrong = watching.images.model_copy(update={"prometheus": watching.images.grafana})
    try:
        with pytest.raises(ControlError, match="prometheus does not answer at") as error:
            await observe_up(session, ports, lambda part: None, wrong)
        assert error.value.do == f"{watching.tool} logs sparkfleet-watched-prometheus"
    finally:
        await observe_down(session)


async def test_an_image_that_cannot_be_fetched_is_named_with_the_command_that_fetches_it():
    """The reason began in the middle of a digest, and the command was `Run it by hand on the node.`"""
    image = "docker.io/prom/prometheus@sha256:" + "6" * 64
    argv = ("podman", "run", "--detach", image, "--web.listen-address=127.0.0.1:1")
    said = "Trying to pull " + image + "...\nError: pinging container registry docker.io: no such host\n"
    head = FakeChannel("spark1", {argv: Completed(argv=argv, exit_code=125, stdout="", stderr=said)})
    with pytest.raises(NodeError) as failed:
        await module._run(head, argv)
    assert failed.value.what == (
        "`podman run` on spark1 ended with 125: Error: pinging container registry docker.io: no such host"
    )
    assert failed.value.do.startswith(f"`podman pull {image}` on spark1 repeats the download;")
