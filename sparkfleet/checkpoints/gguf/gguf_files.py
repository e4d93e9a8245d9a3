"""Names of the files of a GGUF checkpoint, and their choice among the files of a directory or a repository."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparkfleet.errors import Cause, FactError
from sparkfleet.specs.gguf_names import NamedModel, models_of, siblings, tag_of, tower_of
from sparkfleet.units import gb
from sparkfleet.values import Value

LISTED_TAGS = 40


class GgufFiles(Value):
    """The files that llama.cpp opens, relative to the checkpoint's directory."""

    model: str
    """The weights; of several shards (`…-00001-of-00003.gguf`) the first, beside which the others are found."""
    mmproj: str = ""
    """The vision or sound tower; "" if the checkpoint has none."""

    @property
    def tag(self) -> str:
        """The quantisation by the name of the file, in upper case: "Q4_K_M", "UD-Q4_K_XL", "MXFP4"."""
        return tag_of(self.model)


def choose(
    names: Collection[str], tag: str, where: str, sizes: Mapping[str, int] | None = None
) -> tuple[GgufFiles, tuple[str, ...]]:
    """The model with a tag among files, and all of its files: shards, and the tower.

    Args:
        names: of the files, relative to the directory.
        tag: in any letter case; "" if there is only one model.
        where: names the place in messages.
        sizes: bytes by name, for messages.

    Raises:
        FactError: no model has the tag, several have it, or shards are missing.
    """
    models = models_of(names)
    found = [one for one in models if not tag or one.tag == tag.upper()]
    if not found and tag:
        raise _not_there(models, tag, where, sizes or {})
    if not found:
        raise FactError(
            f"{where}: has no GGUF model.",
            means="Towers (mmproj), drafts and importance matrices are no models.",
            do="Give a repository or directory with a model's GGUF file.",
            because=Cause.MISSING,
        )
    if len(found) > 1:
        raise _several(found, tag, where, sizes or {})
    return _with_tower(found[0], names, where)


def choose_file(name: str, names: Collection[str], where: str) -> tuple[GgufFiles, tuple[str, ...]]:
    """The same for a file of the model, by its name. Raises FactError if shards are missing."""
    return _with_tower(siblings(name, names), names, where)


def _with_tower(model: NamedModel, names: Collection[str], where: str) -> tuple[GgufFiles, tuple[str, ...]]:
    if model.missing:
        raise FactError(
            f"{where}: {model.missing} of the {model.missing + len(model.files)} files of {model.tag} are missing.",
            means="The checkpoint is incomplete.",
            do="Let the download finish, or start it again.",
        )
    tower = tower_of(names, model.files[0])
    return GgufFiles(model=model.files[0], mmproj=tower), (*model.files, *([tower] if tower else []))


def _not_there(models: Sequence[NamedModel], tag: str, where: str, sizes: Mapping[str, int]) -> FactError:
    if not models:
        return FactError(
            f"{where}: has no GGUF model, so none with the tag {tag}.",
            do="Leave the tag out for a checkpoint in safetensors format, or give a repository with GGUF files.",
        )
    return FactError(
        f"{where}: has no GGUF model with the tag {tag}.",
        means=f"It has {_listed(models, sizes)}.",
        do=f"Write one of these tags, such as :{_preferred(models).tag}.",
    )


def _several(found: Sequence[NamedModel], tag: str, where: str, sizes: Mapping[str, int]) -> FactError:
    tags = {one.tag for one in found}
    if len(tags) < len(found) and len(tags) == 1:
        names = ", ".join(one.files[0] for one in found[:LISTED_TAGS])
        return FactError(
            f"{where}: has {len(found)} GGUF models with the tag {found[0].tag}: {names}.",
            means="A tag has to name one of them.",
            do="Download the one that you want, and give its absolute path.",
        )
    return FactError(
        f"{where}: has {len(found)} GGUF models: {_listed(found, sizes)}.",
        means="The name of the model needs the tag of one of them.",
        do=f"Write it with its tag, such as {where}:{_preferred(found).tag}."
        if not where.startswith("/")
        else f"Give the absolute path of one, such as {where}/{_preferred(found).files[0]}.",
    )


def _preferred(models: Sequence[NamedModel]) -> NamedModel:
    """The one to name as an example: llama.cpp's own default, if there is one."""
    return next((one for tag in ("Q4_K_M", "MXFP4") for one in models if one.tag == tag), models[0])


def _listed(models: Sequence[NamedModel], sizes: Mapping[str, int]) -> str:
    """Tags with their sizes, the smallest first."""
    known = [(sum(sizes.get(name, 0) for name in one.files), one.tag) for one in models]
    words = [f"{tag} ({gb(size)})" if size else tag for size, tag in sorted(known)]
    more = f", … ({len(words)} in all)" if len(words) > LISTED_TAGS else ""
    return ", ".join(words[:LISTED_TAGS]) + more
