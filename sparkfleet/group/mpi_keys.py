"""SSH key pair of a group that MPI starts: equal on all of its nodes without being sent to any.

Like the group's internal token it is derived from the fleet's engine secret, which every node has, and from the group's
name: a key that leaked from one group gives no access to another.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from sparkfleet.errors import NodeError
from sparkfleet.group.group_launch import GroupLaunch
from sparkfleet.remote.atomic_write import write_atomically

PRIVATE, PUBLIC = "id_ed25519", "id_ed25519.pub"


def key_of(secret: bytes, group: str) -> Ed25519PrivateKey:
    """The key of a group.

    Args:
        secret: the fleet's own, at least 32 bytes, never shown.
        group: see `GroupLaunch.name`.
    """
    seed = hmac.new(secret, b"sparkfleet group ssh key\0" + group.encode(), hashlib.sha256).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def write_keys(directory: Path, secret: str, launch: GroupLaunch) -> None:
    """Writes a group's key pair to the directory that its rank uses; readable by this user alone.

    Raises:
        NodeError: the files cannot be written.
    """
    key = key_of(secret.encode(), launch.name)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    try:
        write_atomically(directory / PRIVATE, private)
        write_atomically(directory / PUBLIC, public + b"\n")
    except OSError as error:
        raise NodeError(f"the keys of {launch.name} cannot be written to {directory}: {error}") from error
