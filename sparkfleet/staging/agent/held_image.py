"""Description of an image on a node: what docker and podman report of it, in one form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sparkfleet.staging.agent.image_architectures import fits, own_architecture
from sparkfleet.staging.errors import StagingError
from sparkfleet.values import Value

TAGGED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}", re.ASCII)
"""A reference without a digest."""
REFERENCE = re.compile(TAGGED.pattern + r"@sha256:(?P<digest>[0-9a-f]{64})", re.ASCII)
"""A reference with its digest."""
_ID = re.compile(r"(sha256:)?(?P<hex>[0-9a-f]{64})", re.ASCII)


class ImageHeld(Value):
    """Image on a node.

    Attributes:
        tool: docker or podman.
        id: by which the tool knows it; "" if the node has nothing. Of Docker with containerd's store (29 and later) it is
            the digest of its manifest, of others that of its configuration: two nodes may know one image by two ids.
        digest: its digest in its registry; "" if it has none.
        size: bytes; unpacked, but for Docker with containerd's store, which counts its packed layers.
        architecture: of its programs, by OCI's name (`amd64`, `arm64`); "" if the tool does not report it. A list of several
            architectures has one digest for all of them, and a node's tool fetches the part for its own.
        machine: architecture of the node, by the same names; "" if it is another one.
    """

    tool: str = ""
    id: str = ""
    digest: str = ""
    size: int = 0
    architecture: str = ""
    machine: str = ""

    @property
    def runs_here(self) -> bool:
        """True if the node has it, and its programs are for the node's processors."""
        return bool(self.id) and self.runs_on(self.machine)

    def runs_on(self, machine: str) -> bool:
        """True if its programs are for processors of this architecture, or if one of the two is not known."""
        return fits(self.architecture, machine)


def described(tool: str, inspected: str, image: str) -> ImageHeld:
    """The image that `docker image inspect` or podman's has printed, asked for by the reference `image`.

    Raises:
        StagingError: the output has an unknown form.
    """
    try:
        (found,) = json.loads(inspected)
        size, match = found["Size"], _ID.fullmatch(found["Id"])
        digest = _published(found.get("RepoDigests") or (), image, str(found.get("Digest") or ""))
        architecture = str(found.get("Architecture") or "")
    except (ValueError, KeyError, TypeError) as error:
        raise StagingError(f"the output of `{tool} image inspect` has an unknown form: {error!r}.") from error
    if match is None or not isinstance(size, int):
        raise StagingError(f"the output of `{tool} image inspect` has an unknown form.")
    return ImageHeld(
        tool=tool, id=match["hex"], digest=digest, size=max(size, 0),
        architecture=architecture, machine=own_architecture(),
    )  # fmt: skip


def _published(references: Sequence[str], image: str, own: str) -> str:
    """Digest of the image in its own repository; "" if it has none.

    Podman lists two of an image that was pulled from a list of builds: the list's, which is its `Digest` and which every
    architecture can pull, and the build's. Of several others, any identifies it.
    """
    repository = in_full(repository_of(image.partition("@")[0]))
    matches = (REFERENCE.fullmatch(one) for one in references if in_full(one.partition("@")[0]) == repository)
    found = [match["digest"] for match in matches if match is not None]
    listed = own.removeprefix("sha256:")
    return listed if listed in found else next(iter(found), "")


def in_full(image: str) -> str:
    """Complete a short name with its registry: podman has no default."""
    head, slash, _ = image.partition("/")
    if slash and (head == "localhost" or "." in head or ":" in head):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def repository_of(name: str) -> str:
    """A name without its tag."""
    path, slash, last = name.rpartition("/")
    return path + slash + last.partition(":")[0]
