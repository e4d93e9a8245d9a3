"""Service manager of a node's Ray watchdog, now and after a reboot: systemd if there is one, else cron, else none.

systemd: a user unit, with linger so that it needs no login. cron: the watchdog starts here, and a line with `@reboot` in the
user's crontab starts it the next time. Neither needs root.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkfleet.errors import ControlError

WAIT_S = 30.0
CRON_PIDS = (Path("/run/crond.pid"), Path("/var/run/crond.pid"))
LINGERS = Path("/var/lib/systemd/linger")
"""Has a file for each user whose processes systemd does not end with the last login."""
SESSION = "session"
"""In place of "systemd": the service ends with the user's last login, and does not start after a reboot."""
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Debian's and Ubuntu's for a login, if a crontab refuses a line with a longer one (vixie-cron: more than 998 bytes)."""
_NO_CRONTAB = ("no crontab", "No such file")
"""Words of crontab for a user who has none: cronie's and vixie-cron's, busybox's."""


def start(label: str, argv: Sequence[str], env: Mapping[str, str], log: Path, *, again: bool = True) -> str:
    """Starts the watchdog; returns the service that starts it after a reboot, "" for none, `SESSION` if only a login does.

    Args:
        label: the fleet on this node; one watchdog per label.
        argv: the watchdog's command.
        env: set on top of the environment.
        log: file for its output. systemd keeps it in the journal.
        again: systemd ends one that runs. Without systemd it is left to the watchdog that starts.

    Raises:
        ControlError: systemd is available and refuses the unit.
    """
    # cron's own is /usr/bin:/bin, systemd's has no directory of a home: a program that `up` has found would be missing.
    env = {"PATH": os.environ.get("PATH", os.defpath), **env}
    if _has_systemd():
        _enable_unit(label, argv, env, "restart" if again else "start")
        return "systemd" if _lingers() else SESSION
    spawn(argv, env, log)
    lines = (_cron_line(label, argv, env | path) for path in ({}, {"PATH": USUAL_PATH}))
    return "cron" if _has_cron() and any(_write_crontab(label, line) for line in lines) else ""


def stop(label: str) -> None:
    """Removes the service of this label. A watchdog that cron or a person started ends by itself."""
    if _has_systemd() and _unit_path(label).exists():
        _call("systemctl", "--user", "disable", "--now", _unit_name(label))
        _unit_path(label).unlink(missing_ok=True)
        _call("systemctl", "--user", "daemon-reload")
    if shutil.which("crontab"):
        _write_crontab(label, None)


def unit_text(label: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The systemd unit of a watchdog."""
    command = " ".join(_quoted(word).replace("$", "$$") for word in argv)
    variables = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in env.items())
    return f"""[Unit]
Description=sparkfleet {label}
After=network-online.target

[Service]
{variables}
ExecStart={command}
Restart=on-failure
RestartSec=5
KillMode=process

[Install]
WantedBy=default.target
"""


def crontab_with(before: str, label: str, line: str | None) -> str:
    """A crontab with this label's line replaced, or without it. Other lines are left as they are."""
    kept = [text for text in before.splitlines() if not text.endswith(_mark(label))]
    return "".join(f"{text}\n" for text in (*kept, *([line] if line else ())))


def _has_systemd() -> bool:
    return (
        bool(shutil.which("systemctl")) and _call("systemctl", "--user", "show-environment").returncode == 0
    )


def _lingers() -> bool:
    try:
        return (LINGERS / pwd.getpwuid(os.getuid()).pw_name).exists()
    except KeyError:  # a user without a name, who cannot linger
        return False


def _has_cron() -> bool:
    return bool(shutil.which("crontab")) and any(path.exists() for path in CRON_PIDS)


def _enable_unit(label: str, argv: Sequence[str], env: Mapping[str, str], verb: str) -> None:
    path = _unit_path(label)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit_text(label, argv, env))
    _call("loginctl", "enable-linger")
    _call("systemctl", "--user", "daemon-reload")
    done = _call("systemctl", "--user", "enable", _unit_name(label))
    if done.returncode == 0:
        done = _call("systemctl", "--user", verb, _unit_name(label))
    if done.returncode != 0:
        raise ControlError(
            f"systemd refused {_unit_name(label)}: {done.stderr.strip()[-300:]}",
            means="Ray was not started on this node.",
            do=f"Run `systemctl --user status {_unit_name(label)}` on the node.",
        )


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Starts it in a session of its own, detached from its caller."""
    setsid = shutil.which("setsid", path=os.defpath) or "setsid"
    with log.open("ab") as output:
        subprocess.run(
            (setsid, "--fork", *argv),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            check=True,
        )


def _write_crontab(label: str, line: str | None) -> bool:
    """True if the line is now in the crontab. One that cannot be read is left as it is: its other lines would be lost."""
    read = _call("crontab", "-l")
    if read.returncode and not any(words in read.stderr for words in _NO_CRONTAB):
        return False
    before = "" if read.returncode else read.stdout
    after = crontab_with(before, label, line)
    if after == before:
        return line is not None
    return _call("crontab", "-", given=after).returncode == 0


def _cron_line(label: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    words = [*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(argv)]
    # cron ends a command at a bare %.
    return f"@reboot {' '.join(words).replace('%', chr(92) + '%')} {_mark(label)}"


def _mark(label: str) -> str:
    return f"# sparkfleet {label}"


def _unit_name(label: str) -> str:
    return f"sparkfleet-{label}.service"


def _unit_path(label: str) -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "systemd" / "user" / _unit_name(label)


def _quoted(word: str) -> str:
    """A word as systemd reads it: in double quotes, % doubled. In a command line, unlike in a variable, $ has to be, too."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _call(*argv: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    # `sudo -u` leaves the variable out, and `su` keeps its caller's: systemctl would not find this user's systemd.
    runtime = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    try:
        return subprocess.run(
            argv,
            env={**os.environ, **runtime},
            input=given or "",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # lines of a crontab that are no UTF-8 stay as they are
            timeout=WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))
