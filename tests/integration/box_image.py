"""An image of vLLM's CPU build without a registry: empty directories, into which each node shows its own programs.

What would be layers of an image are volumes that the user's `containers.conf` gives to every container: /usr, and the
environment of these tests with its interpreter. The image itself says where programs are found, as others do. Rootless
podman, with one user id only: a node has no /etc/subuid.
"""

import io
import json
import sys
import tarfile
from pathlib import Path

NAME = "localhost/sparkfleet-test-vllm-cpu"
"""The engine in an image is told by its name where nothing else is known of it."""
_DIRECTORIES = ("etc", "proc", "sys", "dev", "run", "tmp", "usr", "root", "var/tmp")
_LINKS = ("bin", "lib", "lib64", "sbin")
_FILES = ("passwd", "group", "nsswitch.conf", "ld.so.cache")
_STORAGE = '[storage]\ndriver = "overlay"\n'


def programs():
    """Directories of the host that the engine runs from."""
    return list(dict.fromkeys(("/usr", sys.base_prefix, sys.prefix)))


def settle(lab, node):
    """Prepare a node's user for containers that see its programs."""
    volumes = json.dumps([f"{path}:{path}:ro" for path in programs()])
    texts = {"storage.conf": _STORAGE, "containers.conf": f"[containers]\nvolumes = {volumes}\n"}
    for name, text in texts.items():
        place = f"$HOME/.config/containers/{name}"
        write = f'mkdir -p "$HOME/.config/containers" && cat > "{place}"'
        _done(lab.exec(node, ["sh", "-c", write], stdin=text))


def refused(lab, node):
    """Why a node cannot run containers; "" where it can. The image has to be there."""
    argv = (
        "podman",
        "run",
        "--rm",
        "--network",
        "host",
        "--log-driver=none",
        f"{NAME}:1",
        "sh",
        "-c",
        "exit 7",
    )
    tried = lab.exec(node, list(argv), timeout_s=120)
    return "" if tried.returncode == 7 else tried.stderr.strip()


def lay(lab, node):
    """Make the image on a node; its name with its digest."""
    place = "/var/tmp/image.tar"
    unpacked = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.stdin.read()))"
    _done(lab.exec(node, ["python3", "-c", unpacked, place], stdin=_archive().hex()))
    path = f"ENV PATH={Path(sys.prefix, 'bin')}:/usr/bin:/bin"
    _done(lab.exec(node, ["podman", "import", "-q", "--change", path, place, f"{NAME}:1"], timeout_s=120))
    told = _done(lab.exec(node, ["podman", "image", "inspect", "--format", "{{.Digest}}", f"{NAME}:1"]))
    return f"{NAME}@{told.stdout.split()[-1]}"


def _archive():
    """Everything in it is root's: there is no other user to give it to."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in dict.fromkeys((*_DIRECTORIES, *(path.lstrip("/") for path in programs()))):
            tar.addfile(_member(name, tarfile.DIRTYPE))
        for name in _LINKS:
            tar.addfile(_member(name, tarfile.SYMTYPE, f"usr/{name}"))
        for name in _FILES:
            text = Path("/etc", name).read_bytes()
            member = _member(f"etc/{name}", tarfile.REGTYPE)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return file.getvalue()


def _member(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    member.mode = 0o644 if kind == tarfile.REGTYPE else 0o755
    return member


def _done(run):
    assert run.returncode == 0, run.stderr
    return run
