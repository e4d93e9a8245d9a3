"""Files of `observe config`: Prometheus and Alertmanager accept them, and what the owner edited is kept."""

import socket
import subprocess
import time

import httpx
import pytest
import yaml

from sparkfleet.errors import SpecError
from sparkfleet.fleet.observe.files import write_files
from sparkfleet.telemetry.observe_files import ObservePlace, observe_files

PLACE = ObservePlace(api="http://127.0.0.1:7001", token_file="/state/home/metrics.token", fleet="home")


def test_the_files_of_a_fleet(tmp_path):
    done = write_files(tmp_path / "new" / "dir", PLACE)
    there = {
        str(path.relative_to(tmp_path / "new" / "dir"))
        for path in (tmp_path / "new").rglob("*")
        if path.is_file()
    }
    assert there == set(done.written) == set(observe_files(PLACE))
    assert len([name for name in there if name.startswith("grafana/dashboards/")]) == 4


def test_targets_come_from_the_controller_and_the_token_from_its_file(tmp_path):
    (scrape,) = yaml.safe_load(observe_files(PLACE)["prometheus.yml"])["scrape_configs"]
    assert scrape["http_sd_configs"][0]["url"] == "http://127.0.0.1:7001/targets"
    assert scrape["authorization"] == {"credentials_file": "/state/home/metrics.token"}


def test_a_second_run_keeps_what_the_owner_edited(tmp_path):
    write_files(tmp_path, PLACE)
    (tmp_path / "alertmanager.yml").write_text("# mine\n")
    (tmp_path / "prometheus.yml").write_text("# broken\n")
    (tmp_path / "other.txt").write_text("mine")
    done = write_files(tmp_path, PLACE)
    assert (done.kept, done.written) == (("alertmanager.yml",), ("prometheus.yml",))
    assert (tmp_path / "alertmanager.yml").read_text() == "# mine\n"
    assert (tmp_path / "other.txt").read_text() == "mine"
    assert write_files(tmp_path, PLACE).written == ()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written") as error:
        write_files(tmp_path / "file", PLACE)
    assert error.value.means == "Nothing was written."


def test_prometheus_and_alertmanager_accept_them(tmp_path):
    token = tmp_path / "token"
    token.write_text("t")
    write_files(tmp_path, PLACE.model_copy(update={"token_file": str(token)}))
    for command in (
        ("promtool", "check", "config", tmp_path / "prometheus.yml"),
        ("amtool", "check-config", tmp_path / "alertmanager.yml"),
    ):
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def alertmanager(tmp_path):
    """A client of a real Alertmanager with the file of `observe config`."""
    write_files(tmp_path, PLACE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = (
        "prometheus-alertmanager", f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    )  # fmt: skip
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                try:
                    if client.get("/-/ready").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.2)
            yield client
        process.terminate()


def test_a_critical_alert_hides_lesser_ones_of_its_own_node_and_deployment_only(alertmanager):
    def alert(name, severity, **labels):
        return {"labels": {"alertname": name, "severity": severity, **labels}}

    given = [
        alert("ControllerGone", "critical"),
        alert("KeyExpires", "warning", key="k"),
        alert("NodeLost", "critical", node="spark1"),
        alert("GpuHot", "warning", node="spark1"),
        alert("DiskLow", "warning", node="spark2"),
        alert("DeploymentFailed", "critical", deployment="d"),
        alert("LowerRung", "info", deployment="d", group="d/g1/0"),
        alert("QueueLong", "warning", deployment="other"),
    ]
    assert alertmanager.post("/api/v2/alerts", json=given).status_code == 200
    hides, end = {"GpuHot", "LowerRung"}, time.monotonic() + 60
    found, hidden = [], set()
    # Alertmanager gives each of its parts new alerts by itself, and that which hides may have them after the list does.
    while not (len(found) == len(given) and hidden >= hides) and time.monotonic() < end:
        found = alertmanager.get("/api/v2/alerts").json()
        hidden = {one["labels"]["alertname"] for one in found if one["status"]["inhibitedBy"]}
        time.sleep(0.1)
    assert (len(found), hidden) == (len(given), hides)
