"""Architectures of images and of nodes, by OCI's names (Go's GOARCH): a Spark is arm64, a head beside it may be amd64."""

from __future__ import annotations

import os
import re

_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name and OCI's."""
_NO_BUILD = re.compile(
    "no matching manifest for |no match for platform in manifest"
    "|no image found in (image index|manifest list) for architecture "
)
"""Words of docker, containerd and podman (containers/image) about a list of builds without one for this node."""
OTHER_BUILD = "Name an image, or a tag of it, that has a build for this architecture."


def own_architecture() -> str:
    """Architecture of this node; "" if it is neither of the two."""
    return _NAMES.get(os.uname().machine, "")


def fits(image: str, node: str) -> bool:
    """True if programs of one architecture run on the other, or if one of them is not known."""
    known = _NAMES.values()
    return image == node or image not in known or node not in known


def is_without_build(line: str) -> bool:
    """True if a line of a container tool reports that an image has no build for this node."""
    return _NO_BUILD.search(line) is not None
