"""Packs the release for all nodes: this sparkfleet, pip to install it, and the versions installed here."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sparkfleet import __version__
from sparkfleet.errors import NodeError
from sparkfleet.values import Value

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Date of every file in a wheel, so that the same content gives the same bytes."""


NOT_ON_NODES = (
    *(
        "accuracy/",
        "lab/",
        "tiny_models/",
        "knowledge/measurements/benchmarks.csv",
    ),  # used by developers and the lab
    *(
        "cli/",
        "fleet/",
        "install/",
        "fabric/",
        "doctor/",
        "perf/",
    ),  # used by the command line, on its own machine
    *(
        "planner/capacity/",
        "planner/engine_args/",
        "planner/place/",
        "planner/search/",
        "planner/cpu/",
        "planner/packing/",
        "planner/rules/rule_facts.py",
    ),
    *("planner/report/explain/", "planner/report/prediction_terms.py"),
)
"""Parts of the package that no process of a node imports. A node's environment is without them."""


ON_NODES = (
    *("doctor/thresholds.py", "fabric/node_addresses.py", "perf/prediction.py"),
    *("perf/draft_methods.py", "perf/latency/acceptance.py", "perf/latency/local_acceptance.py"),
    *("planner/capacity/start_time.py", "planner/report/explain/layout.py"),
    "planner/report/explain/prefix_lines.py",
)
"""Modules of those parts that the controller imports."""


HEAD = "head"
"""The extra of sparkfleet with what a node needs, whether it is the head or not."""


HASHES = "hashes.txt"
"""Wheels of the tested versions, as PyPI has them, for each Python and processor of a node. From `scripts/hashes.py`."""


class Release(Value):
    """Wheels and pins; the same on every node."""

    digest: str
    """Of the name of the environment: one digest, one sparkfleet with the same versions of its packages."""
    wheel: bytes
    wheel_name: str
    pip: bytes
    """pip as a wheel: a node's Python need not have it (Ubuntu's has neither pip nor ensurepip)."""
    pins: tuple[str, ...]
    """`name==version` of every requirement of sparkfleet on a node: as tested if these are the versions that are installed
    here, or if this machine has the command line only; otherwise as installed here."""
    hashes: tuple[str, ...] = ()
    """Lines for pip with these and, for nodes of another kind, further packages, each with the SHA-256 of its wheels.
    (): the hashes of a version that is installed here are not known."""


@cache
def release() -> Release:
    """Release of the sparkfleet that runs here, installed or from a checkout.

    Raises:
        NodeError: pip is not installed here, so it cannot be sent to nodes.
    """
    name = f"sparkfleet-{__version__}-py3-none-any.whl"
    wheel = _own_wheel()
    installed = tuple(sorted(pins_of(frozenset({HEAD}))))
    hashes = hashes_of(installed if is_node_software_installed() else ())
    # With the tested versions the pins are the same wherever `up` runs, and so is the environment's name.
    pins = tuple(line.partition(" ")[0] for line in hashes) or installed
    digest = hashlib.sha256(wheel + "\n".join(pins).encode()).hexdigest()[:12]
    return Release(digest=digest, wheel=wheel, wheel_name=name, pip=_pip_wheel(), pins=pins, hashes=hashes)


def is_node_software_installed() -> bool:
    """True if this Python has what a node needs; False if it has the command line only."""
    return find_spec("ray") is not None


def hashes_of(pins: Iterable[str]) -> tuple[str, ...]:
    """The lines of hashes.txt if it has every pin; else (): pip checks the hashes of all packages or of none."""
    text = (files("sparkfleet.install") / HASHES).read_text("utf-8")
    lines = tuple(line for line in text.splitlines() if line and not line.startswith("#"))
    return lines if {*pins} <= {line.partition(" ")[0] for line in lines} else ()


def pins_of(extras: frozenset[str]) -> Iterator[str]:
    """Pins of all that is installed here of what sparkfleet needs with these extras, directly or not, without itself."""
    from packaging.utils import canonicalize_name  # a slow import, for releases only

    seen = {"sparkfleet"}
    waiting = [("sparkfleet", frozenset[str]()), ("sparkfleet", extras)]
    while waiting:
        for requirement in _requirements(*waiting.pop()):
            needed = canonicalize_name(requirement.name)
            try:
                version = metadata.version(needed)
            except metadata.PackageNotFoundError:
                continue  # for another platform, or of an extra that is not requested
            if needed not in seen:
                seen.add(needed)
                yield f"{needed}=={version.partition('+')[0]}"
            # Requested again with extras: their requirements count, too. Each set of extras is visited once.
            if (key := f"{needed}[{','.join(sorted(requirement.extras))}]") not in seen:
                seen.add(key)
                waiting.append((needed, frozenset(requirement.extras)))


def _own_wheel() -> bytes:
    """Wheel of this package's files and metadata. It is not built from the checkout, which may be gone."""
    package = Path(str(files("sparkfleet")))
    content = {
        f"sparkfleet/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not _stays_here(path.relative_to(package))
    }
    about = _distribution("sparkfleet").read_text("METADATA")
    if about is None:
        raise NodeError("sparkfleet's own metadata cannot be read.", do="Install sparkfleet again with pip.")
    info = f"sparkfleet-{__version__}.dist-info"
    content[f"{info}/METADATA"] = about.encode()
    content[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: sparkfleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    return _zip(content, f"{info}/RECORD")


def _stays_here(path: Path) -> bool:
    name = path.as_posix()
    package = f"{path.parent.as_posix()}/__init__.py"
    needed = name in ON_NODES or (
        name == package and any(one.startswith(f"{path.parent.as_posix()}/") for one in ON_NODES)
    )
    return name.startswith(NOT_ON_NODES) and not needed


def _pip_wheel() -> bytes:
    """pip as it is installed here. It is pure Python, so it runs anywhere, also from inside its wheel."""
    try:
        distribution = metadata.distribution("pip")
    except metadata.PackageNotFoundError:
        return _bundled_pip()
    content = {
        str(path): Path(str(path.locate())).read_bytes()
        for path in distribution.files or ()
        if path.parts[0] in ("pip", f"pip-{distribution.version}.dist-info") and path.suffix != ".pyc"
    }
    return _zip(content, f"pip-{distribution.version}.dist-info/RECORD")


def _bundled_pip() -> bytes:
    try:
        bundled = files("ensurepip") / "_bundled"
        return next(f for f in bundled.iterdir() if f.name.startswith("pip-")).read_bytes()
    except (ModuleNotFoundError, StopIteration, OSError):
        raise NodeError(
            "pip is not installed in sparkfleet's environment.",
            means="sparkfleet copies pip to the nodes, so it cannot be installed there.",
            do="Install pip: `python -m ensurepip`, or `uv pip install pip`.",
        ) from None


def _zip(content: dict[str, bytes], record: str) -> bytes:
    """Wheel of these files, with its RECORD: name, hash and size of each."""
    content = {name: data for name, data in content.items() if name != record}
    lines = [f"{name},sha256={_hash(data)},{len(data)}" for name, data in sorted(content.items())]
    content[record] = "\n".join((*lines, f"{record},,", "")).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(content.items()):
            entry = zipfile.ZipInfo(str(PurePosixPath(name)), _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _distribution(name: str) -> metadata.Distribution:
    """The installed distribution: a checkout that was built once contains an old description of itself."""
    found = list(metadata.distributions(name=name))
    return next((one for one in found if one.read_text("METADATA")), found[0])


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    from packaging.requirements import Requirement  # a slow import

    for text in _distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        ):
            yield requirement
