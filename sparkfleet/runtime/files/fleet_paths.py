"""Paths of a fleet's state on its head node. One place for every file name."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from sparkfleet.errors import ControlError
from sparkfleet.remote.atomic_write import write_atomically
from sparkfleet.runtime.files.state_probe import ENDED_ROLE, fleet_label, run_directory, state_root
from sparkfleet.runtime.files.token_secrets import SECRET_BYTES, TokenSecrets, is_secret

STATE_VARIABLE = "SPARKFLEET_STATE"
"""Variable in every process that Ray starts on a node: the fleet's state directory on that node."""


MOVING_STORE = ".moving.db"


class FleetPaths:
    """The state directory of one fleet, and its short run directory for sockets.

    Args:
        root: the state directory, e.g. `~/.local/state/sparkfleet/home`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = root / "sparkfleet.db"
        self.store_mark = root / "store.json"
        """Identity of the store that belongs here: see `controlplane/store_safety/mark.py`."""
        self.backups = root / "backups"
        """Checked copies of the store."""
        self.former_store = root / ".sparkfleet.db.former"
        """The head's store as the former release left it, during an upgrade."""
        self.ray_token = root / "ray.token"
        self.api_token = root / "api.token"
        self.engine_secret = root / "engine.secret"
        self.engine_tokens = root / "engine.tokens"
        """Secrets from which the engines' tokens are derived, once they were changed: see `token_secrets.py`."""
        self.former_api_tokens = root / "api.token.former"
        """API tokens that are accepted while a change of the secrets is under way, one a line."""
        self.metrics_token = root / "metrics.token"
        """The token for the engines' metrics pages, for Prometheus: derived from the engine secret, on the head."""
        self.ray_tls = root / "ray-tls"
        """This node's certificate for Ray and the authority's: see `ray_tls.py`."""
        self.tls = root / "tls"
        """The endpoint's generated certificate, and that of the fleet's authority."""
        self.demo_key = root / "demo.key"
        """Text of the API key that `sparkfleet demo` made, for the next demo. No other key's text is stored."""
        self.address = root / "address.json"
        """Addresses of Ray and the controller, written at their start."""
        self.outcome = root / "boot.json"
        """Outcome of the last `up`: an address, or an error."""
        self.links = root / "links.json"
        """Measurements of the links by `doctor` and `fabric measure`, on the machine that ran them."""
        self.step_times = root / "step-times.json"
        """Durations of the steps of the last starts, on the machine that requested them."""
        self.role = root / "role.json"
        """This node's role in the fleet, for its start after a reboot."""
        self.ended_role = root / ENDED_ROLE
        """The role of a node that is being taken down."""
        self.former_role = root / "role.former.json"
        """The role of a node whose release is being upgraded, as the former release wrote it."""
        self.next_role = root / "role.next.json"
        """The role of a node that is about to become the head."""
        self.head_move = root / "head-move.json"
        """The move of the head that is under way: see `controlplane/store_safety/moving.py`."""
        self.moving_store = root / MOVING_STORE
        """A copy of the store on its way to another head."""
        self.kernels = root / "kernels"
        """Compiled kernels of engines in containers: a container itself loses them, and compiling takes minutes."""
        self.encodings = root / "encodings"
        """tiktoken's files for gpt-oss, if a person has put them there (engines/harmony.py)."""
        self.gcs = root / "gcs"
        self.logs = root / "logs"
        self.ranks = root / "ranks"

    @classmethod
    def default(cls, fleet: str) -> FleetPaths:
        """See `state_probe.state_root`."""
        return cls(state_root(fleet))

    @classmethod
    def of_this_process(cls) -> FleetPaths:
        """Paths of the fleet of this process, which Ray has started."""
        return cls(Path(os.environ[STATE_VARIABLE]))

    @property
    def undone_moves(self) -> Path:
        """Moves of the head from this node that were undone: see `controlplane/store_safety/moving.py`."""
        return self.root / "moves-undone.json"

    def rank_files(self, slug: str) -> Path:
        """Directory of the files of a rank's engine, by its id's slug."""
        return self.ranks / slug

    def end_note(self, slug: str) -> Path:
        """Note of the last end of the engine of which this is rank 0 (`group/end_note.py`); a reboot keeps it."""
        return self.rank_files(slug) / "ended"

    def forget_ends(self) -> None:
        """Removes all notes of last ends, after an intended stop of everything."""
        for note in self.ranks.glob("*/ended"):
            note.unlink(missing_ok=True)

    def rank_log(self, slug: str) -> Path:
        """The log of a rank, by its id's slug."""
        return self.logs / f"{slug}.log"

    @property
    def upgrade_claim(self) -> Path:
        """The upgrade that may change this node: see `node_daemon/upgrade_claim.py`."""
        return self.root / "upgrade.json"

    @property
    def kept_copies(self) -> Path:
        """The newest copy of the head's store, on every other node: see `controlplane/store_safety/kept_copy.py`."""
        return self.root / "kept"

    @property
    def kv(self) -> Path:
        """KV that deployments with `kv_disk` keep on the disk, by deployment: it holds what was in prompts."""
        return self.root / "kv"

    @property
    def gateway_usage(self) -> Path:
        """Usage that the controller has not stored yet, one file per gateway (`gateway/accounting/usage_journal.py`)."""
        return self.root / "usage"

    @property
    def stored_responses(self) -> Path:
        """Owners of responses that engines have stored: see `gateway/access/response_owners.py`."""
        return self.root / "responses" / "owners"

    @property
    def metrics_port(self) -> Path:
        """Port of the gateway's metrics page on this head."""
        return self.root / "metrics.port"

    @property
    def label(self) -> str:
        """Name of this fleet on this machine, unique by its directory; every process of the fleet carries it."""
        return fleet_label(self.root)

    @property
    def run(self) -> Path:
        """Directory for sockets. Short: a Unix socket's path has 107 bytes, and Ray's own part of it takes 70."""
        return run_directory(self.root)

    @property
    def run_address(self) -> Path:
        """The addresses once more, on another file system."""
        return self.run / "address.json"

    @property
    def run_store_mark(self) -> Path:
        """The mark of the store once more, on another file system."""
        return self.run / "store.json"

    @property
    def run_clock(self) -> Path:
        """The wall clock as the controller knows it."""
        return self.run / "clock"

    @property
    def ending(self) -> Path:
        """Mark of a `down` that has begun to kill Ray and the controller, until they are gone."""
        return self.run / "ending"

    @property
    def applied(self) -> Path:
        """Everything that is applied, for `sparkfleet restore --adopt`."""
        return self.run / "applied.json"

    @property
    def controller_note(self) -> Path:
        """The controller's state and trouble, for a program that its API does not reach."""
        return self.run / "controller.json"

    def create(self) -> None:
        """Creates missing directories (0700) and secrets (0600).

        Raises:
            ControlError: the run directory belongs to another user, or others may write to it; or the engine secret of a
                fleet that has a store is missing: another one could not open the values that are sealed in it.
        """
        for directory in (self.root, self.gcs, self.kernels, self.logs):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for directory in (self.run.parent, self.run):
            directory.mkdir(exist_ok=True, mode=0o700)
            _check_owner(directory)
        if self.database.exists():
            self.read_engine_secret()
        for secret in (self.ray_token, self.api_token, self.engine_secret):
            _create_secret(secret)

    def read_engine_secret(self) -> str:
        """See `read_secret`: of the engines."""
        return read_secret(self.engine_secret)

    def read_api_token(self) -> str:
        """The token of the controller's API, without the newline of an editor.

        Raises:
            ControlError: the file is missing, cannot be read, or has something else.
        """
        return read_secret(
            self.api_token,
            means="No command reaches the controller without it; what runs goes on.",
            do=f"`{_new_secret(self.api_token)}` on the head makes another: the controller takes it with the next request.",
        )

    def read_token_secrets(self) -> TokenSecrets:
        """The secrets of the engines' tokens; the engine secret if they were never changed.

        Raises:
            ControlError: a file cannot be read, or has something else.
        """
        try:
            return TokenSecrets.parse(self.engine_tokens.read_text())
        except FileNotFoundError:
            return TokenSecrets(current=self.read_engine_secret())
        except (OSError, ValueError) as error:
            raise _no_secret(self.engine_tokens, getattr(error, "strerror", None) or str(error)) from error

    def take(self, *, ray_token: str, engine_secret: str, engine_tokens: str = "") -> None:
        """Stores the secrets of the fleet's head on another node; "" leaves the existing one."""
        for path, secret in (
            (self.ray_token, ray_token),
            (self.engine_secret, engine_secret),
            (self.engine_tokens, engine_tokens),
        ):
            if secret:
                write_atomically(path, secret.encode(), durable=True)


def _check_owner(directory: Path) -> None:
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise ControlError(
            f"{directory} is not a directory that only you can use.",
            means="Another user of this machine could take over the fleet's sockets.",
            do=f"Check it with `ls -ld {directory}`, remove it, and try again.",
        )


def read_secret(path: Path, means: str = "", do: str = "") -> str:
    """A secret of one line; by default that of the engines, from which their tokens and the key of sealed values derive.

    Args:
        path: its file.
        means: consequence for a person if it cannot be used; "": that of the engine secret.
        do: remedy; "": that of the engine secret.

    Raises:
        ControlError: the file is missing, cannot be read, or has something else.
    """
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise _no_secret(path, error.strerror or str(error), means, do) from error
    except UnicodeDecodeError as error:
        raise _no_secret(path, "it is not text", means, do) from error
    if not is_secret(secret):
        raise _no_secret(path, f"it does not have {2 * SECRET_BYTES} hexadecimal digits", means, do)
    return secret


def _no_secret(path: Path, reason: str, means: str = "", do: str = "") -> ControlError:
    return ControlError(
        f"The secret {path} cannot be used: {reason}.",
        means=means or "Engines and gateways that run go on with it; none can be started.",
        do=do
        or f"Put the file back (mode 0600): {path.name} is the same in the fleet's state directory on every node. If none"
        f" has it, `{_new_secret(path)}` makes another; then apply each deployment with `env` again.",
    )


def _new_secret(path: Path) -> str:
    """The command that makes another secret."""
    return f"openssl rand -hex {SECRET_BYTES} > {shlex.quote(str(path))}"


def _create_secret(path: Path) -> None:
    """Creates a secret, unless it exists. Atomic: every process reads the same whole one."""
    if path.exists():
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_atomically(beside, secrets.token_hex(SECRET_BYTES).encode(), durable=True)
    try:
        with suppress(FileExistsError):  # another process was quicker
            os.link(beside, path)
    finally:
        beside.unlink()
