"""Disks: space for weights and images, and usable caches."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.check import Check, fleet_check, node_check
from sparkfleet.doctor.findings import CheckFault, error, not_known, note, warning
from sparkfleet.doctor.snapshot import FleetReadings, Needed, NodeSnapshot
from sparkfleet.hostfacts.disk import CachedModel, Disks
from sparkfleet.knowledge.models.known_models import hub_spelling
from sparkfleet.specs.gguf_names import models_of, tower_of
from sparkfleet.units import GB, gb


@fleet_check(
    "disk-for-weights", "disks hold the weights of every deployment", source="chosen here: size + 10 %"
)
def disk_for_weights(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares missing weights with the free space of the Hub's cache, on the pinned nodes or else on any node."""
    pinned = [one for one in fleet.needed if one.nodes]
    for node in fleet.answered:
        missing = _each_once(one for one in pinned if node.name in one.nodes and _is_missing(node, one))
        if uncounted := [_name(one) for one in missing if _is_uncounted(node, one)]:
            yield not_known(
                f"{node.name}: space for {', '.join(uncounted)} is not known, because counting its files took too long"
            )
            continue
        if missing and (free := _free(node)) is None:
            yield not_known(
                f"{node.name}: free space for weights is not known, because its disks were not read"
            )
        elif missing and free is not None and free < _required(missing):
            yield _too_little(f"{node.name}: {gb(free)} are free", missing)
    for one in fleet.needed:
        rooms = {node.name: _free(node) for node in fleet.answered}
        somewhere = any(not _is_missing(node, one) or _is_uncounted(node, one) for node in fleet.answered)
        if one.nodes or somewhere or not rooms or None in rooms.values():
            continue
        if all(free is not None and free < _required([one]) for free in rooms.values()):
            listed = ", ".join(f"{gb(free or 0)} on {name}" for name, free in rooms.items())
            yield _too_little(f"no node has enough space: {listed} are free", [one])


def _each_once(needed: Iterable[Needed]) -> list[Needed]:
    """Variants, and deployments, of one model share its files."""
    return list({(one.model.lower(), one.revision, one.tag): one for one in needed}.values())


def _free(node: NodeSnapshot) -> int | None:
    hub = node.disks.places.get("hub") if node.disks else None
    return hub.free if hub else None


def _required(missing: Sequence[Needed]) -> float:
    return sum(one.weights_bytes for one in missing) * thresholds.DISK_HEADROOM


def _too_little(free: str, missing: Sequence[Needed]) -> CheckFault:
    return error(
        f"{free}, less than the {gb(_required(missing))} that weights need",
        means="The download would fail half way. Missing: "
        + ", ".join(f"{_name(one)} {gb(one.weights_bytes, exact=True)}" for one in missing),
        do=("sparkfleet models list", "sparkfleet models prune", "df -h ~/.cache/huggingface"),
    )


def _is_uncounted(node: NodeSnapshot, needed: Needed) -> bool:
    """True if the node has files of the model, of an unknown size."""
    models = node.disks.models if node.disks else ()
    return any(model.size is None for model in models if model.id.lower() == needed.model.lower())


def _name(needed: Needed) -> str:
    return f"{needed.model}:{needed.tag}" if needed.tag else needed.model


def _is_missing(node: NodeSnapshot, needed: Needed) -> bool:
    models = node.disks.models if node.disks else ()
    held = sum(_held(model, needed.tag) for model in models if model.id.lower() == needed.model.lower())
    # A copy with nine tenths of the bytes counts: sizes differ by other files and links.
    return held < needed.weights_bytes * 0.9


def _held(model: CachedModel, tag: str) -> int:
    """Bytes of a cached model; of a GGUF model those of its files and its tower, without other tags."""
    if not tag:
        return model.size or 0
    files = next((one.files for one in models_of(model.ggufs) if one.tag == tag.upper()), ())
    tower = tower_of(model.ggufs, files[0]) if files else ""
    return sum(model.ggufs[one] for one in (*files, *([tower] if tower else ())))


@fleet_check(
    "model-letter-case",
    "models have the upper and lower case letters of the Hub",
    source="chosen here: decision 127; names of the Hub that the knowledge has",
)
def model_letter_case(fleet: FleetReadings) -> Iterator[CheckFault]:
    """Compares the models of the deployments with names of the Hub: an older release stored them in any letter case."""
    for deployment, model, revision, tag in dict.fromkeys(
        (one.deployment, one.model, one.revision, one.tag) for one in fleet.needed
    ):
        known = hub_spelling(model)
        if known is not None and known != model:
            pinned = f"{known}{f'@{revision}' if revision else ''}{f':{tag}' if tag else ''}"
            yield note(
                f"{deployment}: its model {model} is {known} at the Hub",
                means="An older release accepted any upper and lower case letters. A node that lacks these weights cannot"
                " load them under this name; what serves now is not affected.",
                do=f"`model: {pinned}` in its file, then `sparkfleet apply`: the weights are loaded"
                " under that name, and its engines start again",
            )


@node_check("disk-low", "disks are not nearly full")
def disk_low(node: NodeSnapshot, disks: Disks) -> Iterator[CheckFault]:
    """Checks each disk that sparkfleet stores data on, once."""
    seen: set[int] = set()
    for name in ("root", "home", "hub", "tmp"):
        place = disks.places.get(name)
        if place is None or place.device in seen:
            continue
        seen.add(place.device)
        if place.free < min(thresholds.DISK_LOW_GB * GB, place.total // 10):
            yield warning(
                f"{node.name}: {gb(place.free)} of {gb(place.total)} are free at {place.path}",
                means="Images, weights and logs do not fit; Ray stops placing work on a full disk.",
                do=(f"sudo du -xh --max-depth=2 {place.path} | sort -h | tail", "sparkfleet models prune"),
            )


@node_check("caches-writable", "this user may write in its caches")
def caches_writable(node: NodeSnapshot, disks: Disks) -> Iterator[CheckFault]:
    """Reports directories of root's, such as docker makes if a container mounts a cache that does not exist yet."""
    if disks.locked:
        rest = f" and {len(disks.locked) - 1} more" if len(disks.locked) > 1 else ""
        yield warning(
            f"{node.name}: this user may not write in {disks.locked[0]}{rest}",
            means="Downloads and copies of models fail there. A container that ran as root has usually made it.",
            do=_own(disks),
        )


def _own(disks: Disks) -> str:
    """The command that makes the caches the user's. Outside of the home, what is above the Hub's cache stays another's."""
    locked, hub, home = PurePosixPath(disks.locked[0]), PurePosixPath(disks.hub), disks.places.get("home")
    is_at_home = home is not None and PurePosixPath(home.path) in locked.parents
    if locked in hub.parents and not is_at_home:
        return f"sudo install -d -o $USER {shlex.quote(str(hub))}"
    return f"sudo chown -R $USER {shlex.quote(str(hub if hub in locked.parents else locked))}"


@node_check(
    "hub-refs",
    "cached models load offline by their names",
    rules=("hf-refs-main-missing",),
    source="knowledge/rules/rules.yaml hf-refs-main-missing",
)
def hub_refs(node: NodeSnapshot, disks: Disks) -> Iterator[CheckFault]:
    """Reports copies of models that were made without `refs`."""
    # llama.cpp opens a GGUF by its path, and each tag has a reference of its own.
    broken = [model.id for model in disks.models if not model.refs_main and not model.ggufs]
    if broken:
        yield note(
            f"{node.name}: no refs/main in the cache of {', '.join(broken[:4])}{' …' if len(broken) > 4 else ''}",
            means="Without internet an engine finds these models by their directory only, not by their name.",
            do="sparkfleet models push MODEL   # or copy its refs/ directory as well",
        )


@node_check(
    "shm-size",
    "files in /dev/shm leave memory for models",
    rules=("shm-64g",),
    source="knowledge/rules/rules.yaml shm-64g",
)
def shm_size(node: NodeSnapshot, disks: Disks) -> Iterator[CheckFault]:
    """Checks the bytes in /dev/shm, which use unified memory, too; its size is only a limit."""
    shm = disks.places.get("shm")
    used = shm.total - shm.free if shm else 0
    if shm and used > thresholds.SHARED_MEMORY_GB * GB / 8:
        yield warning(
            f"{node.name}: {gb(used)} are used in /dev/shm",
            means="Files in /dev/shm use unified memory: engines get that much less. Crashed processes leave such files.",
            do="ls -lhS /dev/shm | head   # remove files of ended processes",
        )


CHECKS: tuple[Check, ...] = (
    disk_for_weights,
    model_letter_case,
    disk_low,
    caches_writable,
    hub_refs,
    shm_size,
)
