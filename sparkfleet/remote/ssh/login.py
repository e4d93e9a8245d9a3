"""Logging in: which keys are offered, in which order, and what is said when none is accepted. No password is asked."""

from __future__ import annotations

import io
import os
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
"""sshd hangs up after six attempts (MaxAuthTries)."""
_AGENT_S = 2.0


def log_in(transport: paramiko.Transport, hop: Hop, deadline: Deadline) -> None:
    """Log in at a server whose host key has been verified.

    Raises:
        Unreachable: it accepts none of our keys, or does not answer in time.
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
        raise silent(hop.name, "the login was not answered", deadline.timeout_s)
    if not transport.is_active() and not tried:
        raise lost(hop.name, transport.get_exception())
    raise _refused(hop, tried)


def _offer(transport: paramiko.Transport, hop: Hop, key: paramiko.PKey) -> str | None:
    """None if the key was accepted; otherwise why it was not."""
    try:
        further = transport.auth_publickey(hop.user, key)
    except paramiko.BadAuthenticationType as error:
        return f"the server wants {' or '.join(error.allowed_types)} instead of a key"
    except paramiko.AuthenticationException as error:
        return "not accepted" if transport.is_active() else f"not accepted ({error})"
    except (paramiko.SSHException, OSError, EOFError) as error:
        return str(error) or "the connection ended"
    return f"accepted, but the server also wants {' and '.join(further)}" if further else None


def _refused(hop: Hop, tried: list[str]) -> AuthenticationFailed:
    offered = "; ".join(tried) or "no key was found"
    return AuthenticationFailed(
        f"{hop.name}: it does not let the user {hop.user} in ({offered})",
        means="It is the right machine: its host key is the pinned one. sparkfleet asks for no passwords.",
        do=f"`ssh-copy-id -p {hop.port} {hop.user}@{hop.host}` gives it your key;"
        " `ssh-add` loads an encrypted key into the agent.",
    )


@contextmanager
def _candidates(hop: Hop, notes: list[str]) -> Iterator[Iterator[tuple[str, paramiko.PKey]]]:
    """Keys with what they are called. The agent's come first; `notes` gets why a file could not be used."""
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
    """Asked first: paramiko forgets to close the socket of an agent that is gone."""
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
        if key is not None and key.asbytes() not in offered:
            yield str(path), key


def _public(path: Path) -> bytes | None:
    """The public key beside a private one, as it travels. It tells whether the agent holds the same key."""
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
        notes.append(f"{path} is encrypted and the agent does not hold it: `ssh-add {path}`")
    except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        notes.append(f"{path} cannot be used: {error}")
    return None


def _key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except paramiko.PasswordRequiredException:
        raise
    except paramiko.SSHException:
        # Paramiko 5.1 takes some ECDSA keys without a comment for empty; in the older format it reads them.
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise
        form = serialization.PrivateFormat.TraditionalOpenSSL
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
        return paramiko.ECDSAKey.from_private_key(io.StringIO(text))
