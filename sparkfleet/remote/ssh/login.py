"""Logs in by public key: order of the keys, and the error if the server accepts none. Never asks for a password."""

from __future__ import annotations

import io
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sparkfleet.remote.ssh.config import Hop
from sparkfleet.remote.ssh.host_keys import Deadline, lost, silent
from sparkfleet.remote.unreachable import AuthenticationFailed

_MOST_KEYS = 5
"""sshd ends the connection after six attempts (MaxAuthTries)."""
_AGENT_S = 2.0


def log_in(transport: paramiko.Transport, hop: Hop, deadline: Deadline) -> None:
    """Log in at a server whose host key has been verified.

    Raises:
        Unreachable: the server accepts none of our keys, or does not answer in time.
    """
    tried: list[str] = []
    with _candidates(hop, tried) as candidates:
        for label, key in candidates:
            transport.auth_timeout = deadline.left_s
            refusal = _offer(transport, hop, key)
            if refusal is None:
                return
            tried.append(f"{label}: {refusal}")
            if not transport.is_active() or deadline.is_over:
                break
    if deadline.is_over:
        raise silent(hop.name, "no answer to the login", deadline.timeout_s)
    if not transport.is_active() and not tried:
        raise lost(hop.name, transport.get_exception())
    raise _refused(hop, tried)


def _offer(transport: paramiko.Transport, hop: Hop, key: paramiko.PKey) -> str | None:
    """Reason for which the server rejected the key; None if it accepted it."""
    try:
        further = transport.auth_publickey(hop.user, key)
    except paramiko.BadAuthenticationType as error:
        return f"the server accepts {' or '.join(error.allowed_types)} only, no keys"
    except paramiko.AuthenticationException as error:
        return "not accepted" if transport.is_active() else f"not accepted ({error})"
    except (paramiko.SSHException, OSError, EOFError) as error:
        return str(error) or "the connection ended"
    return f"accepted, but the server also requires {' and '.join(further)}" if further else None


def _refused(hop: Hop, tried: list[str]) -> AuthenticationFailed:
    offered = "; ".join(tried) or "no key was found"
    missing = [path for path in hop.identities if hop.only_identities and not path.exists()]
    if missing:
        return AuthenticationFailed(
            f"{hop.name}: SSH login as {hop.user} failed ({offered})",
            means="No other key is tried if one is named. The host key matches the pinned one: it is the right machine.",
            do=f"Put the private key at {missing[0]}, or correct `identity_file` in inventory.yaml.",
        )
    return AuthenticationFailed(
        f"{hop.name}: SSH login as {hop.user} was denied ({offered})",
        means="The host key matches the pinned one, so it is the right machine. sparkfleet logs in by key only.",
        do=("Install your key" if tried else "Make a key, `ssh-keygen -t ed25519`, and install it")
        + f": `ssh-copy-id -p {hop.port} {hop.user}@{hop.host}`. If your key is encrypted: `ssh-add`."
        f" If your user there is not {hop.user}: `sparkfleet init USER@HOST`, with the same HOST as before.",
    )


@contextmanager
def _candidates(hop: Hop, notes: list[str]) -> Iterator[Iterator[tuple[str, paramiko.PKey]]]:
    """Keys with their labels, the agent's first. Reasons for which a file cannot be used are added to `notes`."""
    agent = _agent(notes)
    try:
        yield _in_order(hop, agent.get_keys() if agent else (), notes)
    finally:
        if agent:
            agent.close()


def _agent(notes: list[str]) -> paramiko.Agent | None:
    try:
        return paramiko.Agent() if _agent_answers() else None
    except (paramiko.SSHException, OSError) as error:
        notes.append(f"the SSH agent: {error}")
        return None


def _agent_answers() -> bool:
    """Probed first: paramiko does not close the socket of an agent that has exited."""
    address = os.environ.get("SSH_AUTH_SOCK")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.settimeout(_AGENT_S)
        sock.connect(address)
        return True
    return False


def _in_order(
    hop: Hop, held: tuple[paramiko.AgentKey, ...], notes: list[str]
) -> Iterator[tuple[str, paramiko.PKey]]:
    public = {found: path for path in hop.identities if (found := _public(path)) is not None}
    ours = [key for key in held if key.asbytes() in public]
    others = [] if hop.only_identities else [key for key in held if key.asbytes() not in public]
    offered = set()
    for agent_key in (*ours, *others[: max(_MOST_KEYS - len(hop.identities), 1)]):
        offered.add(agent_key.asbytes())
        yield f"{agent_key.comment or 'a key'} of the SSH agent", agent_key
    for path in hop.identities:
        key = None if _public(path) in offered else _load(path, notes)
        if hop.only_identities and not path.exists() and _public(path) is None:
            notes.append(
                f"{path} does not exist; it is the only key that the inventory (`identity_file`) or ~/.ssh/config names"
            )
        if key is not None and key.asbytes() not in offered:
            yield str(path), key


def _public(path: Path) -> bytes | None:
    """Public key beside a private one, in wire format; compared with the keys of the agent."""
    try:
        kind, content = path.with_name(path.name + ".pub").read_text().split(maxsplit=2)[:2]
        return paramiko.pkey.PublicBlob.from_string(f"{kind} {content}").key_blob
    except (OSError, ValueError):
        return None


def _load(path: Path, notes: list[str]) -> paramiko.PKey | None:
    if not path.exists():
        return None
    try:
        return _key(path)
    except (TypeError, paramiko.PasswordRequiredException):
        notes.append(f"{path} is encrypted and not in the SSH agent: `ssh-add {shlex.quote(str(path))}`")
    except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        notes.append(f"{path} cannot be used: {error}")
    return None


def _key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except paramiko.PasswordRequiredException:
        raise
    except paramiko.SSHException:
        # Paramiko 5.1 rejects some ECDSA keys without a comment as empty; it reads them in the older format.
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise
        form = serialization.PrivateFormat.TraditionalOpenSSL
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
        return paramiko.ECDSAKey.from_private_key(io.StringIO(text))
