"""Files of `observe config`: Prometheus and Alertmanager accept them, and what the owner edited is kept."""

import subprocess

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
