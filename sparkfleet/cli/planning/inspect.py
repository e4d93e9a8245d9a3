"""`sparkfleet inspect`: shows the facts of a checkpoint on this machine, on a node or at the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.checkpoints.arch.layers import LayerKind
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, JsonOption, OfflineOption, open_session, run
from sparkfleet.cli.output import OUTPUT_VERSION, print_json, print_line
from sparkfleet.errors import FactError
from sparkfleet.fleet.planning.checkpoints import inspect_model
from sparkfleet.specs.fields import quote
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.units import KIB, MIB

BILLION, MILLION = (1e9, "billion", "GB"), (1e6, "million", "MB")
"""Divisor, name of the count of parameters, and unit of bytes."""


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="Hub id, with :TAG for a GGUF model of several; absolute directory or GGUF file; or builtin:NAME.",
            metavar="MODEL",
            show_default=False,
        ),
    ],
    inventory: Annotated[
        Path | None,
        typer.Option(
            "--inventory",
            "-i",
            envvar="SPARKFLEET_INVENTORY",
            help=f"Fleet on whose nodes to look for weights that are not here. Default: {DEFAULT_INVENTORY} if it exists.",
            show_default=False,
        ),
    ] = None,
    offline: OfflineOption = False,
    json: JsonOption = False,
) -> int:
    """Show a checkpoint's facts: sizes by part, layers, KV cache, MTP head, vision tower, license. Reads no weights."""
    try:
        found = _find(model, inventory)
    except FactError as error:
        if (hint := _relative_path(Path(model))) is None:
            raise
        means, do = hint
        raise FactError(error.what, means=means, do=do) from None
    if json:
        print_json({"version": OUTPUT_VERSION, "checkpoint": found.model_dump(mode="json")})
    else:
        for line in lines(found):
            print_line(line)
    return Exit.DONE


def _relative_path(here: Path) -> tuple[str, str] | None:
    """Meaning and next step if the name that was not found is a path from here; None if it is not."""
    if here.is_absolute() or not os.path.exists(here):  # Path.exists raises for a name that is too long
        return None
    command = f"`sparkfleet inspect {here.resolve()}`."
    if here.is_file() and here.suffix == SUFFIX:
        return (
            "There is a GGUF file of that name here, but files have to be given as absolute paths.",
            command,
        )
    if not (here / "config.json").is_file():
        kind = "a directory without config.json" if here.is_dir() else "a file"
        do = "`sparkfleet inspect /PATH` takes the absolute path of a directory with a checkpoint's config.json."
        return f"{quote(str(here))} here is {kind}.", do
    return (
        "There is a directory of that name here, but directories have to be given as absolute paths.",
        command,
    )


def _find(model: str, inventory: Path | None) -> Checkpoint:
    if inventory is None and not DEFAULT_INVENTORY.exists():
        return run(inspect_model(model))
    return run(inspect_model(model, lambda: open_session(inventory or DEFAULT_INVENTORY)))


def lines(checkpoint: Checkpoint) -> Iterator[str]:
    """The facts for a person."""
    active = checkpoint.active_parameters
    unit, count, size = _scale(checkpoint)
    yield f"{checkpoint.id}   {', '.join(checkpoint.architectures) or checkpoint.model_type}"
    known = "the weight files" if checkpoint.weights_known else "the config alone, weights estimated"
    yield _line("from", checkpoint.origin or known)
    yield _line(
        "size",
        f"{checkpoint.total_parameters / unit:.2f} {count} parameters, {active / unit:.2f} active"
        f" · {checkpoint.bytes_on_disk / unit:.1f} {size} · {checkpoint.active_bytes / unit:.2f} {size} read per token",
    )
    yield from _gguf(checkpoint)
    yield from _parts(checkpoint)
    yield _line("layers", ", ".join(f"{n} {kind.value}" for kind, n in checkpoint.layer_counts().items()))
    yield _line(
        "KV cache",
        f"{checkpoint.kv_bytes_per_token() / KIB:.1f} KiB per token ({'f16' if checkpoint.gguf else checkpoint.kv_dtype()})"
        f"{_state(checkpoint)}",
    )
    if checkpoint.experts:
        yield _line(
            "experts",
            f"{checkpoint.experts}, {checkpoint.experts_per_token} per token, {checkpoint.shared_experts} shared",
        )
    yield _line("context", f"{checkpoint.max_positions or 'not declared'}")
    yield _line("stored", _stored(checkpoint))
    yield _line("vision", _yes(checkpoint.vision, checkpoint.declares_vision))
    yield _line(
        "MTP head",
        _yes(
            None if checkpoint.mtp_layers is None else checkpoint.mtp_layers > 0,
            checkpoint.declared_mtp_layers > 0,
        ),
    )
    yield _line(
        "license",
        f"{checkpoint.license.id} ({checkpoint.license.kind})" if checkpoint.license.id else "unknown",
    )
    if checkpoint.needs_remote_code:
        yield _line(
            "code",
            "has Python files of its own; an engine that does not know the architecture would run them",
        )


def _gguf(checkpoint: Checkpoint) -> Iterator[str]:
    """The files of a GGUF model, and what they have."""
    files = checkpoint.gguf
    if files is None:
        return
    yield _line("GGUF", f"{files.tag} · {files.model}")
    yield _line("mmproj", files.mmproj or "none: it takes text alone")
    template = "yes" if checkpoint.chat_template else "no: the engine would have to be given one"
    yield _line("template", template)


def _parts(checkpoint: Checkpoint) -> Iterator[str]:
    parameters = checkpoint.parameters_by_part()
    unit, count, size = _scale(checkpoint)
    sizes = sorted(checkpoint.bytes_by_part().items(), key=lambda item: -item[1])
    for number, (part, held) in enumerate(sizes):
        yield _line(
            "parts" if number == 0 else "",
            f"{held / unit:8.2f} {size}  {parameters.get(part, 0) / unit:8.3f} {count}  {part.value.replace('_', ' ')}",
        )


def _scale(checkpoint: Checkpoint) -> tuple[float, str, str]:
    return BILLION if checkpoint.total_parameters >= BILLION[0] / 10 else MILLION


def _state(checkpoint: Checkpoint) -> str:
    linear = checkpoint.layer_counts().get(LayerKind.LINEAR, 0)
    return f" · {checkpoint.state_bytes_per_sequence() / MIB:.1f} MiB of state per request" if linear else ""


def _stored(checkpoint: Checkpoint) -> str:
    quantization = checkpoint.quantization
    if quantization is None:
        wide = "; engines load it in 16 bits" if checkpoint.dtype == "float32" else ""
        return f"{checkpoint.dtype}, not quantised{wide}"
    mixed = ", mixed" if quantization.mixed else ""
    bits = f"{quantization.scheme.stored_bits:.2f} bits per weight with scales"
    return f"{quantization.scheme.format} ({quantization.method}{mixed}), {bits}"


def _yes(seen: bool | None, declared: bool) -> str:
    if seen is None:
        return "declared by the config; not checked, the weights are not here" if declared else "no"
    if seen:
        return "yes, in the weights"
    return "no: the config declares one, the weights have none" if declared else "no"


def _line(label: str, text: str) -> str:
    return f"  {label:<10}{text}"
