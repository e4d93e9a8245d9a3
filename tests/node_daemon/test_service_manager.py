import getpass
import os
import subprocess
import sys
import time

import pytest

from sparkfleet.node_daemon import service_manager

ARGV = ("/opt/my env/python", "-m", "sparkfleet.node_daemon.node_cli", "keep", "/home/me/50% $HOME")
ENV = {"SPARKFLEET_RAY": "home-1234"}


def test_a_unit_quotes_what_systemd_would_expand():
    text = service_manager.unit_text("home-1234", ARGV, ENV)
    assert 'ExecStart="/opt/my env/python" "-m"' in text
    assert '"/home/me/50%% $$HOME"' in text
    assert 'Environment="SPARKFLEET_RAY=home-1234"' in text
    own = service_manager.unit_text("home-1234", ARGV, {"PATH": '/home/a "b" $c/50%/bin'})
    assert 'Environment="PATH=/home/a \\"b\\" $c/50%%/bin"\n' in own, "systemd expands no $ in a variable"


def test_a_crontab_keeps_what_is_not_ours():
    before = "0 3 * * * backup\n@reboot old # sparkfleet home-1234\n@reboot other # sparkfleet home-12345\n"
    after = service_manager.crontab_with(before, "home-1234", "@reboot new # sparkfleet home-1234")
    assert after.splitlines() == [
        "0 3 * * * backup",
        "@reboot other # sparkfleet home-12345",
        "@reboot new # sparkfleet home-1234",
    ]
    assert service_manager.crontab_with(after, "home-1234", None).count("home-1234 ") == 0


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with commands of our own only."""

    def add(name, body):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{body}\n")
        path.chmod(0o755)
        return path

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service_manager, "CRON_PIDS", (tmp_path / "crond.pid",))
    monkeypatch.setattr(service_manager, "LINGERS", tmp_path / "linger")
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / getpass.getuser()).touch()
    add.directory = tmp_path
    return add


CRONTAB = """
import sys, pathlib
kept = pathlib.Path({path!r})
if sys.argv[1:] == ["-l"]:
    sys.exit(sys.stdout.buffer.write(kept.read_bytes()) * 0 if kept.exists() else {without!r})
kept.write_bytes(sys.stdin.buffer.read())
"""

SYSTEMCTL = """
import sys, pathlib
with open({path!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + chr(10))
"""


def marker(tmp_path):
    """A watchdog that leaves a trace of its run."""
    return (sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w').close()")


def until_exists(path):
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def test_without_systemd_and_cron_it_starts_and_says_that_nothing_will_start_it_again(tools):
    log = tools.directory / "log"
    assert service_manager.start("home-1", marker(tools.directory), ENV, log) == ""
    until_exists(tools.directory / "ran")


def test_cron_starts_it_after_a_reboot(tools):
    table = tools.directory / "table"
    tools("crontab", CRONTAB.format(path=str(table), without="no crontab for me"))
    (tools.directory / "crond.pid").touch()
    assert service_manager.start("home-1", marker(tools.directory), ENV, tools.directory / "log") == "cron"
    (line,) = table.read_text().splitlines()
    assert line.startswith(f"@reboot PATH={tools.directory} SPARKFLEET_RAY=home-1234 "), (
        "cron has a shorter PATH"
    )
    until_exists(tools.directory / "ran")
    service_manager.stop("home-1")
    assert table.read_text() == ""


def test_a_path_that_is_too_long_for_the_crontab_does_not_cost_the_start_after_a_reboot(tools, monkeypatch):
    """Debian's crontab refuses a command of more than 998 bytes ("command too long"), and installs nothing."""
    table = tools.directory / "table"
    refuses = "given = sys.stdin.buffer.read()\nif len(given) > 1007:\n    sys.exit('command too long')\n"
    body = CRONTAB.replace("kept.write_bytes(sys.stdin.buffer.read())", f"{refuses}kept.write_bytes(given)")
    tools("crontab", body.format(path=str(table), without="no crontab for me"))
    (tools.directory / "crond.pid").touch()
    monkeypatch.setenv("PATH", f"{tools.directory}:{'/opt/tools/bin:' * 70}/bin")
    assert service_manager.start("home-1", marker(tools.directory), ENV, tools.directory / "log") == "cron"
    (line,) = table.read_text().splitlines()
    assert line.startswith(
        "@reboot PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SPARKFLEET_"
    )


def test_a_crontab_that_is_not_utf_8_stays_as_it_is(tools):
    table, ours = tools.directory / "table", b"0 3 * * * echo caf\xe9\n"
    table.write_bytes(ours)
    tools("crontab", CRONTAB.format(path=str(table), without=""))
    (tools.directory / "crond.pid").touch()
    assert service_manager.start("home-1", marker(tools.directory), ENV, tools.directory / "log") == "cron"
    assert table.read_bytes().startswith(ours + b"@reboot ")
    service_manager.stop("home-1")
    assert table.read_bytes() == ours


def test_a_crontab_that_cannot_be_read_is_not_replaced(tools):
    table = tools.directory / "table"
    tools("crontab", CRONTAB.format(path=str(table), without="crontab: cannot reach the directory service"))
    (tools.directory / "crond.pid").touch()
    assert service_manager.start("home-1", marker(tools.directory), ENV, tools.directory / "log") == ""
    assert not table.exists()


@pytest.mark.parametrize("inherited", [None, "/run/user/4294967"])
def test_systemd_of_this_user_is_found_without_the_variable_of_a_login(tools, monkeypatch, inherited):
    """As in a shell of `sudo -u`, which has no XDG_RUNTIME_DIR, or of `su`, which has its caller's."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if inherited:
        monkeypatch.setenv("XDG_RUNTIME_DIR", inherited)
    tools(
        "systemctl",
        f"import os, sys; sys.exit(os.environ.get('XDG_RUNTIME_DIR') != '/run/user/{os.getuid()}')",
    )
    assert service_manager.start("home-1", ARGV, ENV, tools.directory / "log") == "systemd"


def test_a_service_that_ends_with_the_login_is_no_service_for_a_reboot(tools):
    """`loginctl enable-linger` of a user may be refused, as on a machine without polkit; root's is not."""
    tools("systemctl", "")
    (tools.directory / "linger" / getpass.getuser()).unlink()
    given = ("home-1", ARGV, ENV, tools.directory / "log")
    assert service_manager.start(*given) == service_manager.SESSION
    tools("loginctl", f"open({str(tools.directory / 'linger' / getpass.getuser())!r}, 'w').close()")
    assert service_manager.start(*given) == "systemd"


def test_systemd_is_preferred_and_cleaned_up(tools):
    calls = tools.directory / "calls"
    tools("systemctl", SYSTEMCTL.format(path=str(calls)))
    assert service_manager.start("home-1", ARGV, ENV, tools.directory / "log") == "systemd"
    unit = tools.directory / "config" / "systemd" / "user" / "sparkfleet-home-1.service"
    assert "ExecStart=" in unit.read_text()
    assert f'Environment="PATH={tools.directory}"\n' in unit.read_text(), (
        "systemd's has no directory of a home"
    )
    said = calls.read_text()
    assert "--user enable sparkfleet-home-1.service" in said
    assert "--user restart sparkfleet-home-1.service" in said
    calls.unlink()
    service_manager.start("home-1", ARGV, ENV, tools.directory / "log", again=False)
    assert "--user start sparkfleet-home-1.service" in calls.read_text(), "one that runs goes on"
    service_manager.stop("home-1")
    assert "--user disable --now sparkfleet-home-1.service" in calls.read_text()
    assert not unit.exists()


def test_the_unit_is_one_that_systemd_understands(tmp_path):
    verify = subprocess.run(["sh", "-c", "command -v systemd-analyze"], capture_output=True, check=False)
    if verify.returncode:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "sparkfleet-home.service"
    env = ENV | {"PATH": '/home/a "b" $c/50%/bin:/usr/bin'}
    unit.write_text(service_manager.unit_text("home", (sys.executable, "-c", "pass"), env))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "sparkfleet-home.service" not in done.stderr, done.stderr
