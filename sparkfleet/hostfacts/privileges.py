"""Privileges of sparkfleet's login on a node, and the services that outlive a logout."""

from __future__ import annotations

import re

from sparkfleet.hostfacts.fact import Fact, json_of, text, unexpected_output, whole
from sparkfleet.values import Value

_LOCKED = re.compile(r"^Max locked memory[ \t]{1,40}(\S{1,20})[ \t]{1,40}(\S{1,20})", re.MULTILINE)
_OPEN = re.compile(r"^Max open files[ \t]{1,40}(\S{1,20})[ \t]{1,40}(\S{1,20})", re.MULTILINE)
_GROUP = re.compile(r"\d{1,10}\(([^()]{1,64})\)", re.ASCII)

UNLIMITED = -1


class Limit(Value):
    """Resource limit of a process on the node; `UNLIMITED` if there is none."""

    most: int

    @property
    def is_unlimited(self) -> bool:
        """True if there is none."""
        return self.most == UNLIMITED

    def allows(self, amount: int) -> bool:
        """True if the limit is not below `amount`."""
        return self.is_unlimited or self.most >= amount


class ReadLockedMemory(Fact[Limit]):
    """Reads the bytes that a login may pin. RDMA pins everything that it sends or receives."""

    argv = ("prlimit", "--memlock", "--noheadings", "--raw", "--output", "RESOURCE,SOFT,HARD")

    @staticmethod
    def parse(output: str) -> Limit:
        """The soft limit: RDMA libraries do not raise it."""
        words = output[:1000].split()
        if len(words) != 3 or words[0] != "MEMLOCK":
            raise unexpected_output("the limit of locked memory", output)
        return Limit(most=_limit(words[1], output))


class ReadLockedMemoryOfKernel(Fact[Limit]):
    """Reads the same from the kernel, if `prlimit` is missing."""

    argv = ("cat", "/proc/self/limits")

    @staticmethod
    def parse(output: str) -> Limit:
        """The soft limit in the line "Max locked memory"."""
        found = _LOCKED.search(output)
        if found is None:
            raise unexpected_output("the limit of locked memory", output)
        return Limit(most=_limit(found[1], output))


class ReadOpenFiles(Fact[Limit]):
    """Reads the number of files that a login may have open."""

    argv = ("cat", "/proc/self/limits")

    @staticmethod
    def parse(output: str) -> Limit:
        """The hard limit: Ray raises the soft one to it."""
        found = _OPEN.search(output)
        if found is None:
            raise unexpected_output("the limit of open files", output)
        return Limit(most=_limit(found[2], output))


def _limit(word: str, output: str) -> int:
    if word == "unlimited":
        return UNLIMITED
    if not re.fullmatch(r"\d{1,20}", word, re.ASCII):
        raise unexpected_output("the limits of a process", output)
    return int(word)


class User(Value):
    """User of the login."""

    name: str
    groups: tuple[str, ...]

    @property
    def is_root(self) -> bool:
        """True if the login is root's."""
        return self.name == "root"


class ReadUser(Fact[User]):
    """Reads name and groups."""

    argv = ("id",)

    @staticmethod
    def parse(output: str) -> User:
        """User from `uid=1000(nvidia) gid=1000(nvidia) groups=1000(nvidia),27(sudo),999(docker)`."""
        fields = dict(word.split("=", 1) for word in output[:65_536].split() if "=" in word)
        name, groups = _GROUP.match(fields.get("uid", "")), _GROUP.findall(fields.get("groups", ""))
        if "uid" not in fields:
            raise unexpected_output("the login's user", output)
        return User(
            name=text(name[1]) if name else text(fields["uid"], 20),
            groups=tuple(text(group) for group in groups),
        )


_HOST_PROBE = r"""
import glob, json, os, pwd, shutil
def read(path):
    try:
        with open(path) as f:
            return f.read(4096).strip()
    except (OSError, ValueError):
        return ''
uid = os.getuid()
try:
    name = pwd.getpwuid(uid).pw_name
except KeyError:
    name = str(uid)
zones = [read(p) for p in glob.glob('/sys/class/thermal/thermal_zone*/temp')[:64]]
zones = [int(z) for z in zones if z.lstrip('-').isdigit()]
print(json.dumps({
    'systemd': os.path.isdir('/run/systemd/system'),
    'user_manager': os.path.exists(f'/run/user/{uid}/systemd/private'),
    'linger': os.path.exists(f'/var/lib/systemd/linger/{name}'),
    'cron': shutil.which('crontab') is not None and (uid == 0 or os.access(shutil.which('crontab'), os.X_OK)),
    'hottest': max(zones) if zones else None,
    'remove_ipc': not any(l.replace(' ', '').lower() == 'removeipc=no'
                          for l in read('/etc/systemd/logind.conf').splitlines()),
    'tools': [t for t in ('rsync', 'ib_write_bw', 'ibdev2netdev', 'ethtool', 'lldpctl', 'iperf3', 'sudo')
              if shutil.which(t)],
}))
"""


class Services(Value):
    """Services that start processes on a node and keep them running."""

    systemd: bool
    linger: bool
    """systemd runs a manager for this user also while the user is not logged in."""
    cron: bool
    remove_ipc: bool
    """systemd-logind removes a user's shared memory and semaphores at logout."""
    hottest_c: float | None = None
    """Highest temperature of all thermal zones, °C."""
    tools: tuple[str, ...] = ()
    """Installed tools, of those that sparkfleet uses."""


class ReadServices(Fact[Services]):
    """Reads systemd, linger, cron, tools, and the hottest thermal zone."""

    argv = ("python3", "-I", "-S", "-c", _HOST_PROBE)

    @staticmethod
    def parse(output: str) -> Services:
        """A JSON object."""
        found = json_of(output, dict, "the services")
        tools, hottest = found.get("tools"), whole(found.get("hottest"))
        if not isinstance(tools, list) or "systemd" not in found:
            raise unexpected_output("the services", output)
        return Services(
            systemd=found["systemd"] is True,
            linger=found.get("linger") is True,
            cron=found.get("cron") is True,
            remove_ipc=found.get("remove_ipc") is True,
            hottest_c=None if hottest is None or hottest > 1_000_000 else hottest / 1000,
            tools=tuple(text(tool) for tool in tools[:50]),
        )
