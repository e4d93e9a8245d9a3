"""Machines that boot a real distribution: systemd, netplan, NetworkManager, sudo, sshd and nftables; none is a stand-in.

Each is a root file system (`machine_image`) in a container of podman, with a network namespace of its own that is wired as a
node of the lab. Stand-ins show its hardware only (`STAND_INS`): the ports of a ConnectX are veths here.
"""

import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from machine_image import UID, USER

from sparkfleet.lab import network
from sparkfleet.lab.inside.node_settings import TOOLS
from sparkfleet.lab.layout import MANAGEMENT, make_layout

BOOT_S = 180
"""For systemd, which is up in 4 s on a quiet machine."""
SUBNETS = range(200, 250)
STAND_INS = (
    *("nvidia-smi", "ibdev2netdev", "rdma", "ibv_devinfo", "ibv_devices", "ibstat", "show_gids", "ethtool", "lspci"),
    *("ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat", "ip"),
)  # fmt: skip
"""Commands of a Spark's hardware; `ip` shows veths as physical ports and passes everything else on to the system's."""
_LAUNCHER = """#!/usr/bin/python3 -IS
import sys
sys.path.insert(0, "/run/lab/lib")
from sparkfleet.lab.inside.commands import main
sys.exit(main(sys.argv))
"""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAN = """network:
  version: 2
  renderer: {renderer}
  ethernets:
    {netdev}:
      addresses: [{address}/24]
      routes: [{{to: default, via: {gateway}}}]
"""
"""As an installer writes it."""
_MANAGED = "[device-ports]\nmatch-device=interface-name:en*\nmanaged=1\n"
"""NetworkManager's rules of udev leave veths alone, and a Spark's ports are none."""
_OPTIONS = (
    *("--systemd=always", "--privileged", "--log-driver=none", "--no-hosts", "--rm", "--detach"),
    *("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=32768:32768"),
)
_QUIETLY = (
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5"),
)


@dataclass(frozen=True)
class BootedMachine:
    """One machine, with the data for a connection."""

    name: str
    address: str
    host_key: str
    """Fingerprint, "SHA256:…"."""


class BootedMachines:
    """Machines with a cable between the first two, switched off and deleted at the end of a `with`.

    Args:
        directory: for their files.
        base: the root file system; it stays as it is.
        count: number of machines.
        name: of their namespaces and containers; as that of a lab.
        shares: paths of the host that the machines see, read-only.
        renderer: netplan's, `NetworkManager` as on DGX OS, or `networkd`.
    """

    def __init__(self, directory, base, *, count=2, name="np", shares=(), renderer="NetworkManager"):
        self.directory, self.base, self.name, self.renderer = directory, base, name, renderer
        taken = network.taken_subnets()
        self.layout = make_layout(name, count, None, next(one for one in SUBNETS if one not in taken))
        self.shares = tuple(dict.fromkeys(map(str, shares)))
        self.key_file = directory / "key"
        self._environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf")}
        self._pids = {}

    def __enter__(self):
        try:
            self._prepare()
            network.build(self.layout)
            for node in self.layout.nodes:
                self._make(node)
                self.boot(node.name)
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    @property
    def nodes(self):
        """The machines."""
        return tuple(
            BootedMachine(one.name, one.address, self._host_key(one.name)) for one in self.layout.nodes
        )

    def boot(self, node):
        """Switch a machine on, and wait until systemd has started everything and sshd lets its user in."""
        network.set_carriers(self.layout, {one.name for one in self.layout.nodes}, ())
        shown = {
            "lib": ("/run/lab/lib", "ro"),
            "bin": (TOOLS, "ro"),
            f"{node}/knobs": ("/run/lab/state", "rw"),
        }
        volumes = [f"{self.directory}/{name}:{place}:{mode}" for name, (place, mode) in shown.items()]
        volumes += [f"{path}:{path}:ro" for path in self.shares]
        namespace = f"ns:/run/netns/{self.layout.namespace(node)}"
        self._podman(
            *("run", *_OPTIONS, "--name", self._container(node), "--hostname", node, "--network", namespace),
            *(word for volume in volumes for word in ("--volume", volume)),
            *("--rootfs", self._root(node), "/sbin/init"),
        )
        self._pids[node] = int(self._podman("inspect", "--format", "{{.State.Pid}}", self._container(node)))
        started = ("running", "degraded")
        until(lambda: self.root(node, "systemctl is-system-running").stdout.strip() in started)
        until(lambda: self.ssh(node, "true").returncode == 0)

    def reboot(self, node):
        """`systemctl reboot`, as a person types it."""
        self.root(node, "systemctl reboot")
        self._gone(node)
        self.boot(node)

    def cut_power(self, node):
        """End every process of a machine at once; its file system stays as it is."""
        os.kill(self._pids[node], 9)
        self._gone(node)

    def _gone(self, node):
        until(lambda: not Path(f"/proc/{self._pids[node]}").exists())
        # Not left to podman's own process of `--rm`: beside other tests on a busy machine it had not run after 180 s.
        self._podman("rm", "--force", "--time", "0", "--ignore", self._container(node))
        del self._pids[node]
        network.renew(self.layout, node)

    def root(self, node, script, timeout_s=60.0):
        """Run a script of sh on a machine as root, without SSH."""
        # Not `podman exec`, which takes half a second.
        enter = ("nsenter", "--all", "--target", str(self._pids[node]), "--")
        return _completed((*enter, "env", "-i", f"PATH={_SYSTEM_PATH}", "sh", "-c", script), "", timeout_s)

    def ssh(self, node, *argv, stdin="", timeout_s=60.0):
        """Run a command on a machine as its user, in a login of its own."""
        address = self.layout.node(node).address
        login = ("ssh", *_QUIETLY, "-i", str(self.key_file), f"{USER}@{address}")
        return _completed((*login, shlex.join(argv)), stdin, timeout_s)

    def down(self):
        """Switch the machines off, and remove their namespaces and mounts."""
        if (self.directory / "storage.conf").exists():
            for name in self._containers():
                self._podman("rm", "--force", "--time", "0", name)
        network.destroy(self.name)
        for root in self.directory.glob("*/root"):
            subprocess.run(("umount", "--lazy", root), capture_output=True, check=False)

    def _prepare(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        store = f'driver = "vfs"\ngraphroot = "{self.directory}/store"\nrunroot = "{self.directory}/run"\n'
        (self.directory / "storage.conf").write_text(f"[storage]\n{store}")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key_file)
        package = self.directory / "lib/sparkfleet/lab/inside"
        shutil.copytree(
            Path(network.__file__).parent / "inside", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        tools = self.directory / "bin"
        tools.mkdir()
        (tools / "device").write_text(_LAUNCHER)
        (tools / "device").chmod(0o755)
        for command in STAND_INS:
            (tools / command).symlink_to("device")

    def _make(self, node):
        """A file system above the common one, with what an installer writes for this machine, and the lab's mark."""
        root = self._root(node.name)
        for part in ("upper", "work", "root", "knobs"):
            (root.parent / part).mkdir(parents=True)
        layers = f"lowerdir={self.base},upperdir={root.parent}/upper,workdir={root.parent}/work"
        _run("mount", "-t", "overlay", "overlay", "-o", layers, root)
        (root.parent / "knobs/knobs.json").write_text("{}")
        lan = _LAN.format(
            renderer=self.renderer,
            netdev=MANAGEMENT,
            address=node.address,
            gateway=self.layout.gateway_address,
        )
        files = {
            "hostname": f"{node.name}\n",
            "hosts": f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n",
            "machine-id": f"{os.urandom(16).hex()}\n",
            "netplan/50-cloud-init.yaml": lan,
            "sparkfleet-lab": "The rails of this machine are veths: the rails helper accepts them.\n",
            "ssh/sshd_config.d/lab.conf": f"SetEnv PATH={TOOLS}:{_SYSTEM_PATH}\n",
            "NetworkManager/conf.d/lab.conf": _MANAGED,
        }
        for name, text in files.items():
            (root / "etc" / name).write_text(text)
        (root / "etc/netplan/50-cloud-init.yaml").chmod(0o600)
        _run("chroot", root, "ssh-keygen", "-A")
        ssh = root / "home" / USER / ".ssh"
        ssh.mkdir(mode=0o700)
        shutil.copyfile(self.key_file.with_suffix(".pub"), ssh / "authorized_keys")
        for path in (ssh, ssh / "authorized_keys"):
            os.chown(path, UID, UID)

    def _root(self, node):
        return self.directory / node / "root"

    def _host_key(self, node):
        return _run("ssh-keygen", "-l", "-f", self._root(node) / "etc/ssh/ssh_host_ed25519_key.pub").split()[
            1
        ]

    def _container(self, node):
        return f"{self.name}-{node}"

    def _containers(self):
        return self._podman("ps", "--all", "--format", "{{.Names}}").split()

    def _podman(self, *argv):
        # Not crun, which some kernels have no cgroups for; runc knows both kinds.
        return _run("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", *argv, env=self._environment)


def until(condition, timeout=BOOT_S):
    """Wait for something to become true."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"did not happen in {timeout} s"
        time.sleep(0.3)


def _run(*argv, env=None):
    done = subprocess.run(
        [str(one) for one in argv], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stderr or done.stdout}"
    return done.stdout


def _completed(argv, stdin, timeout_s):
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
