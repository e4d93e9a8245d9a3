"""A small file system in the place of a directory of a node, and clocks of a node's programs that jump."""

import struct

import yaml

HOME = "/home/nvidia"
STATE = f"{HOME}/.local/state/sparkfleet"
MOUNT = """
mkdir -p /tmp/small
mount -t tmpfs -o size=$2,mode=700,uid=$3,gid=$3 none /tmp/small
[ -z "$4" ] || cp -a "$1/." /tmp/small/
mount --move /tmp/small "$1"
"""
UNMOUNT = """
rm -f "$1/filler"
if [ -n "$2" ]; then
    mkdir -p /tmp/below
    mount --bind /home/nvidia /tmp/below
    find "/tmp/below/${1#/home/nvidia/}" -mindepth 1 -delete
    cp -a "$1/." "/tmp/below/${1#/home/nvidia/}/"
    umount /tmp/below
fi
umount --lazy "$1"
"""
SITE = """
import mmap, os, struct, time
with open({path!r} + os.uname().nodename, "rb") as file:
    held = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + struct.unpack("d", held[:8])[0]
time.time_ns = lambda: real_ns() + int(struct.unpack("d", held[:8])[0] * 1e9)
"""
"""Module with which every Python program of a fleet starts: its wall clock is ahead by the number in a file of its node."""


def as_root(fleet, node, *argv):
    """Run a command in a node as root; it has to succeed."""
    done = fleet.lab.exec(node, argv, root=True)
    assert done.returncode == 0, done.stderr


def small_disk(fleet, node, place, size, keep=False):
    """Put a small file system in the place of a directory of a node, with what is in there if that is to be kept."""
    fleet.lab.exec(node, ["mkdir", "-p", place])
    uid = fleet.lab.exec(node, ["id", "-u"]).stdout.strip()
    as_root(fleet, node, "sh", "-ec", MOUNT, "sh", place, size, uid, "kept" * keep)


def large_disk(fleet, node, place, keep=False):
    """Take it away again, and lay what is in there below if that is to be kept."""
    as_root(fleet, node, "sh", "-ec", UNMOUNT, "sh", place, "kept" * keep)


def fill(fleet, node, place):
    """Leave no byte free in a file system of a node."""
    done = fleet.lab.exec(node, ["dd", "if=/dev/zero", f"of={place}/filler", "bs=4k"])
    assert "No space left" in done.stderr, done.stderr


def free(fleet, node, place):
    """Give back what `fill` took."""
    fleet.lab.exec(node, ["rm", "-f", f"{place}/filler"])


class Clocks:
    """The wall clocks of all Python programs of a fleet (sparkfleet's and Ray's), by node.

    Args:
        fleet: it is down; its inventory is changed, so that its next `up` has these clocks.
        nodes: names of its nodes.
    """

    def __init__(self, fleet, nodes):
        self._site = fleet.directory / "clocked"
        self._site.mkdir(exist_ok=True)
        for node in nodes:
            (self._site / f"clock-{node}").write_bytes(bytes(8))
        (self._site / "sitecustomize.py").write_text(SITE.format(path=str(self._site / "clock-")))
        python = self._site / "python"
        path = f"PYTHONPATH={self._site}${{PYTHONPATH:+:$PYTHONPATH}}"
        own = yaml.safe_load((fleet.directory / "inventory.yaml").read_text())
        python.write_text(f'#!/bin/sh\n{path} exec {own["environment"]} "$@"\n')
        python.chmod(0o755)
        fleet.write("inventory.yaml", yaml.safe_dump(own | {"environment": str(python)}))

    def jump(self, node, seconds):
        """Set the clock of a node so many seconds ahead of the machine's."""
        with (self._site / f"clock-{node}").open("r+b") as file:
            file.write(struct.pack("d", seconds))
