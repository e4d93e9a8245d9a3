"""Writes the files of one node before it boots: accounts, keys, sshd's configuration, release files, DMI."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.inside import node_settings
from sparkfleet.lab.inside.node_settings import TOOLS
from sparkfleet.lab.machines import MACHINES
from sparkfleet.lab.run import run
from sparkfleet.lab.state import UID, USER, State, replace_file

PATH = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = "/usr/bin/python3"
COMMANDS = ("nvidia-smi", "ibdev2netdev", "rdma", "ibv_devinfo", "ibv_devices", "ibstat", "show_gids", "ethtool",
            "lspci", "dmesg", "journalctl", "dmidecode", "ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat", "ip",
            "date", "timedatectl", "prlimit", "lsb_release")  # fmt: skip
"""Device commands: links to one launcher, first in the node's PATH."""
REPLAYED = ("cat", "chronyc", "docker", "dpkg-query", "grep", "id", "ls", "podman", "python3", "ss",
            "systemctl", "uname")  # fmt: skip
"""Further commands that can print the output of a bundle; in a lab without one they are the host's."""
_LAUNCHER = f"""#!{Path(PYTHON).resolve()} -IS
import sys
sys.path.insert(0, "/run/lab/lib")
from sparkfleet.lab.inside.commands import main
sys.exit(main(sys.argv))
"""
_SSHD = f"""Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile .ssh/authorized_keys
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
UseDNS no
PrintMotd no
MaxStartups 100:30:200
MaxSessions 100
PidFile /run/sshd.pid
AcceptEnv LANG LC_*
SetEnv PATH={PATH}
Subsystem sftp internal-sftp
"""
_OS_RELEASE = """PRETTY_NAME="Ubuntu 24.04.4 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.4 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
HOME_URL="https://www.ubuntu.com/"
UBUNTU_CODENAME=noble
"""
_CDI = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: []\n"
"""A Spark's toolkit describes the GPU to podman in such a file. The lab's has no device."""
_OWN = ("ssh", "profile.d", "security", "sysctl.d", "modprobe.d")
"""Directories of /etc of which a node has its own copy. Those of `_EMPTY` are empty at first; others are the host's."""
_EMPTY = ("sudoers.d", "netplan", "cron.d", "nvidia", "cdi")
_LEFT_OUT = ("ssh_host_*", "shadow*", "gshadow*", "passwd*", "group*", "*.pid", "cron.*", "crontab", "subuid*", "subgid*",
             "machine-id", "resolv.conf", "os-release", "environment", "hostname", "hosts", *_EMPTY)  # fmt: skip


def install_inside(state: State) -> None:
    """Copies the programs that run inside nodes into the lab, once for all nodes."""
    package = state.path("lib/sparkfleet/lab/inside")
    shutil.copytree(Path(__file__).parent / "inside", package, ignore=shutil.ignore_patterns("__pycache__"))
    tools = state.path("bin")
    tools.mkdir()
    (tools / "device").write_text(_LAUNCHER)
    (tools / "device").chmod(0o755)
    for command in (*COMMANDS, *(_replaceable() if state.replays else ())):
        (tools / command).symlink_to("device")


def _replaceable() -> list[str]:
    """The programs of `REPLAYED` that can be replaced: not the interpreter of the launcher itself."""
    return [name for name in REPLAYED if name != Path(PYTHON).resolve().name]


def make_node(state: State, node: str) -> None:
    """Writes everything that a node needs to boot. Raises LabError."""
    root = state.node_path(node)
    for part in ("log", "cron/crontabs", "state", "dmi", "proc"):
        (root / part).mkdir(parents=True)
    (root / "log/wtmp").touch()
    _etc(state, node)
    _home(state, node)
    _cron_spool(root / "cron/crontabs")
    replace_file(root / "state/knobs.json", "{}")
    write_identity(state, node, node_settings.NodeSettings({}))


def _etc(state: State, node: str) -> None:
    etc = state.node_path(node, "etc")
    shutil.copytree("/etc", etc, symlinks=True, ignore=_only_own)
    for name in _EMPTY:
        (etc / name).mkdir()
    for name in _hosts_directories():
        (etc / name).mkdir()
    _accounts(etc)
    _texts(state, node, etc)
    key = etc / "ssh/ssh_host_ed25519_key"
    run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{node}", "-f", str(key)))
    shutil.copytree(etc / "ssh", state.node_path(node, "own-key"), ignore=_all_but_host_keys)


def _only_own(directory: str, found: list[str]) -> list[str]:
    """Paths that copytree leaves out: those that a node must not have, and directories of /etc that are not its own."""
    left_out = {name for name in found if any(fnmatch(name, pattern) for pattern in _LEFT_OUT)}
    if directory == "/etc":
        left_out |= {name for name in found if Path("/etc", name).is_dir()} - set(_OWN)
    return sorted(left_out)


def _hosts_directories() -> list[str]:
    """Directories of the host's /etc that a node sees as they are."""
    names = (entry.name for entry in Path("/etc").iterdir() if entry.is_dir() and not entry.is_symlink())
    return [n for n in names if n not in _OWN and not any(fnmatch(n, pattern) for pattern in _LEFT_OUT)]


def _all_but_host_keys(_: str, found: list[str]) -> list[str]:
    return [name for name in found if not name.startswith("ssh_host_")]


def _texts(state: State, node: str, etc: Path) -> None:
    hosts = "".join(f"{n.address} {n.name}\n" for n in state.layout.nodes)
    replace_file(etc / "hostname", f"{node}\n")
    replace_file(etc / "hosts", f"127.0.0.1 localhost\n127.0.1.1 {node}\n{hosts}")
    replace_file(etc / "resolv.conf", "# A lab has no resolver: names outside of /etc/hosts are not found.\n")
    replace_file(etc / "environment", f'PATH="{PATH}"\n')
    replace_file(etc / "profile.d/lab.sh", f"PATH={PATH}\nexport PATH\n")
    replace_file(etc / "ssh/sshd_config", _SSHD)
    replace_file(etc / "crontab", f"SHELL=/bin/sh\nPATH={PATH}\n")


def _accounts(etc: Path) -> None:
    """Writes the host's system accounts and the one user; other users of the host do not exist in the node."""
    keep = [line for line in Path("/etc/passwd").read_text().splitlines() if _of_system(line)]
    user = f"{USER}:x:{UID}:{UID}:NVIDIA:/home/{USER}:/bin/bash"
    replace_file(etc / "passwd", "\n".join([*keep, user]) + "\n")
    names = [line.split(":")[0] for line in (*keep, user)]
    # `*`, not `!`: sshd refuses locked accounts, even with a key.
    replace_file(etc / "shadow", "".join(f"{name}:*:20000:0:99999:7:::\n" for name in names), 0o640)
    write_groups(etc, "docker")


def _of_system(line: str) -> bool:
    columns = line.split(":")
    number = columns[2]
    return columns[0] != USER and number.isdigit() and not UID <= int(number) < 60_000


def write_groups(etc: Path, groups: str) -> None:
    """Writes /etc/group with the user in `groups` (by comma) only."""
    wanted = [name for name in groups.split(",") if name]
    rows = [line.split(":") for line in Path("/etc/group").read_text().splitlines() if _of_system(line)]
    rows = [row for row in rows if row[0] != "docker"] + [
        ["docker", "x", "988", ""],
        [USER, "x", str(UID), ""],
    ]
    known = {row[0] for row in rows}
    rows += [[name, "x", str(2000 + index), ""] for index, name in enumerate(wanted) if name not in known]
    text = "".join(":".join((*row[:3], USER if row[0] in wanted else "")) + "\n" for row in rows)
    replace_file(etc / "group", text)


def _home(state: State, node: str) -> None:
    ssh = state.node_path(node, "home", USER, ".ssh")
    ssh.mkdir(parents=True)
    shutil.copyfile(state.path("key.pub"), ssh / "authorized_keys")
    (ssh / "authorized_keys").chmod(0o600)
    ssh.chmod(0o700)
    home = ssh.parent
    for name in (".bashrc", ".profile"):
        if Path("/etc/skel", name).is_file():
            shutil.copyfile(f"/etc/skel/{name}", home / name)
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, UID)
    home.chmod(0o750)


def _cron_spool(crontabs: Path) -> None:
    for line in Path("/etc/group").read_text().splitlines():
        if line.startswith("crontab:"):
            os.chown(crontabs, 0, int(line.split(":")[2]))
    crontabs.chmod(0o1730)


def write_identity(state: State, node: str, settings: node_settings.NodeSettings) -> None:
    """Writes release files, DMI and machine-id by the node's settings, also for a running node."""
    machine = MACHINES[settings.text("machine")]
    etc = state.node_path(node, "etc")
    number = state.layout.node(node).number
    files = {"os-release": _OS_RELEASE, "machine-id": f"{machine_id(state, settings, node)}\n"}
    files["cdi/nvidia.yaml"] = _CDI
    files["sparkfleet-lab"] = "The rails of this node are veths: the rails helper accepts them.\n"
    files |= {
        f"{name}": text for name, text in machine.release_files(number, settings.text("dgx_os")).items()
    }
    for name in ("dgx-release", "fastos-release", "nv_tegra_release"):
        if name not in files:
            (etc / name).unlink(missing_ok=True)
    for name, text in files.items():
        replace_file(etc / name, text)
    for name, text in machine.dmi(number).items():
        replace_file(state.node_path(node, "dmi", name), f"{text}\n", 0o400 if "serial" in name else 0o444)


def machine_id(state: State, settings: node_settings.NodeSettings, node: str) -> str:
    """A node's own machine-id, one that was given, or another node's own."""
    wanted = settings.text("machine_id")
    if len(wanted) == 32 and wanted.isalnum():
        return wanted
    owner = node if wanted == "own" else state.layout.node(wanted).name
    return hashlib.sha256(f"{state.directory}/{owner}".encode()).hexdigest()[:32]


def write_host_key(state: State, node: str, wanted: str) -> None:
    """Gives a node its own host key, another node's, or a new one. sshd has to be reloaded."""
    target = state.node_path(node, "etc/ssh/ssh_host_ed25519_key")
    if wanted == "new":
        for path in (target, target.with_suffix(".pub")):
            path.unlink()
        run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{node}", "-f", str(target)))
        return
    owner = node if wanted == "own" else state.layout.node(wanted).name
    for suffix in ("", ".pub"):
        source = state.node_path(owner, "own-key", target.name + suffix)
        shutil.copy2(source, f"{target}{suffix}")


def fingerprint(state: State, node: str) -> str:
    """The fingerprint of a node's current host key, "SHA256:…"."""
    key = state.node_path(node, "etc/ssh/ssh_host_ed25519_key.pub")
    return run(("ssh-keygen", "-l", "-f", str(key))).split()[1]


def boot_spec(state: State, node: str) -> dict[str, object]:
    """Settings of the node's first process: see `sparkfleet.lab.inside.init.SimulatedNodeSpec`."""
    root = state.node_path(node)
    private = {
        "/etc": root / "etc",
        f"/home/{USER}": root / "home" / USER,
        "/var/log": root / "log",
        "/var/spool/cron": root / "cron",
        "/run/lab/state": root / "state",
        "/run/lab/lib": state.path("lib"),
        TOOLS: state.path("bin"),
        "/sys/class/dmi/id": root / "dmi",
    }
    shares = [*state.shares]
    return {
        "hostname": node,
        "path": PATH,
        "private": {place: str(path) for place, path in private.items()},
        "hosts": [f"/etc/{name}" for name in _hosts_directories()],
        "shares": shares,
        "veiled": veiled(shares),
    }


_PRIVATE = ("/tmp", "/run", "/root", "/home", "/var/tmp", "/usr/local", "/var/lib/sparkfleet-lab")  # noqa: S108


def veiled(shares: Iterable[str]) -> list[str]:
    """Directories of the host that are empty in a node: private ones, and unreadable parents of a share."""
    barred = {str(parent) for share in shares for parent in Path(share).parents if not _open_to_all(parent)}
    # Directories below a veiled one are already hidden.
    hidden = [place for place in (*_PRIVATE, *sorted(barred)) if place not in shares]
    return [p for p in dict.fromkeys(hidden) if not any(Path(p).is_relative_to(q) for q in hidden if q != p)]


def _open_to_all(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)


def resolve_shares(given: Iterable[str]) -> tuple[str, ...]:
    """The shared paths, with the interpreters of virtual environments among them. Raises LabError."""
    found: list[str] = []
    for text in given:
        path = Path(text).absolute()
        if not path.exists():
            raise LabError(f"--share {text}: this path does not exist.")
        found += [str(path), *_interpreter(path)]
    for name in found:
        if not Path(name).stat().st_mode & 0o005 == 0o005 and Path(name).is_dir():
            raise LabError(
                f"--share {name}: only its owner may read it.",
                means=f"The node's user {USER} could not use it.",
                do=f"chmod o+rx {name}",
            )
    return tuple(
        p for p in dict.fromkeys(found) if not any(Path(p).is_relative_to(q) for q in found if q != p)
    )


def _interpreter(environment: Path) -> list[str]:
    """Base installation of a virtual environment's Python, unless it is the system's own."""
    try:
        lines = (environment / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    homes = [
        Path(value.strip())
        for name, _, value in (line.partition("=") for line in lines)
        if name.strip() == "home"
    ]
    return [str(home.parent) for home in homes if home.parent != Path("/usr")]
