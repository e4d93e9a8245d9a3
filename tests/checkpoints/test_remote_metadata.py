"""A checkpoint read by its outline equals the one read from its directory, and no output of a node does harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from base64 import b64encode
from pathlib import Path

import pytest
from tiny_gguf import Q8_0, llama_gguf, llama_shards, tower_gguf

from sparkfleet.checkpoints import remote_metadata as module
from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.checkpoint_reader import read_checkpoint
from sparkfleet.checkpoints.remote_metadata import (
    MetadataRequest,
    Outline,
    OutlinedFile,
    OutlineParser,
    order,
    program,
    read_outline,
)
from sparkfleet.errors import FactError

COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"


def ask(*wanted: MetadataRequest, cache: Path | None = None) -> tuple[Outline | None, ...]:
    """Answers of the real program on this machine."""
    said = subprocess.run(
        [sys.executable, *program()[1:]],
        input=order(wanted),
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "HF_HUB_CACHE": str(cache or "/does/not/exist")},
    )
    assert said.stderr == b""
    parser = OutlineParser(wanted)
    for start in range(0, len(said.stdout), 1000):
        parser.feed(said.stdout[start : start + 1000])
    outlines = parser.outlines()
    assert outlines is not None
    return outlines


def through(directory: Path) -> Checkpoint:
    wanted = MetadataRequest.of(str(directory))
    (outline,) = ask(wanted)
    assert outline is not None
    return read_outline(outline, wanted, "spark1")


def refused(directory: Path) -> tuple[str, str]:
    """Messages about a damaged checkpoint, in its directory and by its outline; the latter without the node's name."""
    with pytest.raises(FactError) as here:
        read_checkpoint(directory)
    with pytest.raises(FactError) as there:
        through(directory)
    assert there.value.what.startswith("spark1:")
    return str(here.value), str(there.value).replace(f"spark1:{directory}", str(directory))


# --- the same, wherever it lies ---------------------------------------------------------------------------------------


def test_one_file(make_checkpoint, llama_weights):
    directory = make_checkpoint(weights=llama_weights())
    assert through(directory) == read_checkpoint(directory)


def test_everything_beside_the_weights_counts(make_checkpoint, llama_weights):
    directory = make_checkpoint(weights=llama_weights())
    (directory / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 20}')
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (directory / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    (directory / "README.md").write_text("---\nlicense: mit\n---\n" + "x" * 100_000)
    found = through(directory)
    assert (found.sampling.temperature, found.sampling.top_k, found.license.id) == (0.7, 20, "mit")
    assert found.kv_dtype() == "fp8"
    assert found == read_checkpoint(directory)


def test_a_license_by_its_text(make_checkpoint):
    directory = make_checkpoint()
    (directory / "LICENSE").write_text("Apache License\nVersion 2.0, January 2004\n")
    assert through(directory).license.id == "apache-2.0"


def test_several_files_with_an_index_and_a_second_copy(make_checkpoint, llama_weights):
    weights = llama_weights()
    directory = make_checkpoint(weights={"a.safetensors": weights[:5], "b.safetensors": weights[5:]})
    (directory / "consolidated.safetensors").write_bytes(b"a second copy whose header is no JSON")
    assert through(directory) == read_checkpoint(directory)


def test_several_files_without_an_index(make_checkpoint, llama_weights):
    weights = llama_weights()
    directory = make_checkpoint(weights={"a.safetensors": weights[:5], "b.safetensors": weights[5:]})
    (directory / "model.safetensors.index.json").unlink()
    (directory / "adapter_model.safetensors").write_bytes(b"of another model")
    assert through(directory) == read_checkpoint(directory)


def test_a_config_alone(make_checkpoint):
    directory = make_checkpoint()
    found = through(directory)
    assert found == read_checkpoint(directory)
    assert (found.weights_known, found.path) == (False, None)


def test_a_snapshot_of_the_hubs_cache(make_checkpoint, llama_weights, tmp_path):
    snapshot = make_checkpoint(weights=llama_weights(), name=f"hub/models--Org--Name/snapshots/{COMMIT}")
    blob = tmp_path / "blob"
    (snapshot / "model.safetensors").rename(blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    refs = tmp_path / "hub" / "models--Org--Name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    (refs / "pr").mkdir()
    (refs / "pr" / "1").write_text(COMMIT)
    names = ("Org/Name", "Org/Name@pr/1", f"Org/Name@{COMMIT}", "Org/Name@v2", "Org/Other")
    wanted = [MetadataRequest.of(name) for name in names]
    *there, other_revision, other_model = ask(*wanted, cache=tmp_path / "hub")
    assert (other_revision, other_model) == (None, None)
    for one, outline in zip(wanted, there, strict=False):
        assert outline is not None
        assert read_outline(outline, one, "spark1") == read_checkpoint(snapshot)
        assert outline.commit == COMMIT


def test_the_path_is_the_one_on_the_node(make_checkpoint, llama_weights):
    directory = make_checkpoint(weights=llama_weights())
    found = through(directory)
    assert (found.path, found.id) == (directory, str(directory))


def test_a_missing_checkpoint(tmp_path):
    (tmp_path / "file").write_text("")
    wanted = [MetadataRequest.of(str(tmp_path / name)) for name in ("nothing", "file")]
    assert ask(*wanted) == (None, None)


def test_weights_are_neither_sent_nor_written(make_checkpoint, tmp_path):
    huge = make_checkpoint(weights=[("model.embed_tokens.weight", "BF16", (1 << 16, 1 << 16))])
    (outline,) = ask(MetadataRequest.of(str(huge)))
    assert outline is not None
    assert sum(len(file.start) for file in outline.files) < 1000
    copy = tmp_path / "copy"
    copy.mkdir()
    module.write_outline(outline, copy)
    written = (copy / "model.safetensors").stat()
    assert written.st_size == (huge / "model.safetensors").stat().st_size > 1 << 33
    assert written.st_blocks * 512 < 1 << 20


# --- damaged there, told as here --------------------------------------------------------------------------------------


def no_config(directory):
    (directory / "config.json").unlink()


def not_json(directory):
    (directory / "config.json").write_text("{")


def too_long(directory):
    with (directory / "config.json").open("r+b") as file:
        file.truncate(40 << 20)


def truncated(directory):
    with (directory / "model.safetensors").open("r+b") as file:
        file.truncate(100)


def empty(directory):
    (directory / "model.safetensors").write_bytes(b"")


def no_header(directory):
    (directory / "model.safetensors").write_bytes(b"\xff" * 64)


def missing_file(directory):
    index = {"weight_map": {"model.norm.weight": "gone.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def index_that_leads_outside(directory):
    index = {"weight_map": {"model.norm.weight": "../x.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def odd_index(directory):
    (directory / "model.safetensors.index.json").write_text('{"weight_map": [[]]}')


def another_format(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


DAMAGES = [
    no_config,
    not_json,
    too_long,
    truncated,
    empty,
    no_header,
    missing_file,
    index_that_leads_outside,
    odd_index,
    another_format,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_reported_in_the_same_words(make_checkpoint, llama_weights, damage):
    directory = make_checkpoint(weights=llama_weights())
    damage(directory)
    here, there = refused(directory)
    assert there == here


def test_a_blob_that_is_gone(make_checkpoint, llama_weights):
    directory = make_checkpoint(weights=llama_weights())
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to(directory / "nowhere")
    with pytest.raises(FactError):
        read_checkpoint(directory)
    with pytest.raises(
        FactError, match=rf"spark1: {directory}/model.safetensors: is a link to a file that does not exist"
    ):
        through(directory)
    missing_file(directory)
    (directory / "gone.safetensors").symlink_to(directory / "nowhere")
    here, there = refused(directory)
    assert there == here


def test_a_special_file_is_reported_at_once(make_checkpoint):
    directory = make_checkpoint()
    os.mkfifo(directory / "hf_quant_config.json")
    with pytest.raises(FactError, match=rf"spark1: {directory}/hf_quant_config.json: is not a regular file"):
        through(directory)


def test_a_damaged_cache(tmp_path):
    refs = tmp_path / "models--Org--Name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("../../../../etc")
    wanted = MetadataRequest.of("Org/Name")
    (outline,) = ask(wanted, cache=tmp_path)
    assert outline is not None
    with pytest.raises(FactError, match=r"spark1: .*refs/main: contains no commit"):
        read_outline(outline, wanted, "spark1")


def test_a_damaged_checkpoint_does_not_hide_the_others(make_checkpoint, llama_weights, tmp_path):
    bad, good = make_checkpoint(name="bad"), make_checkpoint(weights=llama_weights(), name="good")
    os.mkfifo(bad / "README.md")
    first, second = ask(MetadataRequest.of(str(bad)), MetadataRequest.of(str(good)))
    assert first is not None
    assert "is not a regular file" in first.error
    assert second is not None
    assert second.error == ""


# --- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["../x", "a/b/c", "not an id", "Org/Name@../x", "", "Org/Na--me"])
def test_an_invalid_name_is_refused(model):
    with pytest.raises(FactError):
        MetadataRequest.of(model)


def test_the_program_needs_nothing_but_the_standard_library():
    source = program()[-1]
    assert "sparkfleet" not in source
    assert len(source) < 1 << 16, "an argument has at most 128 KiB"


# --- what a node may say ----------------------------------------------------------------------------------------------


def packed(content: bytes) -> str:
    return b64encode(zlib.compress(content)).decode()


def parsed(*lines: object) -> tuple[Outline | None, ...] | None:
    parser = OutlineParser([MetadataRequest.of("/models/x")])
    for line in lines:
        parser.feed((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")
    return parser.outlines()


BEGIN = {"at": 0, "directory": "/models/x"}
FILE = {"at": 0, "name": "config.json", "size": 2, "start": packed(b"{}")}
END = {"end": True}


def test_an_answer_is_read_to_its_end():
    (outline,) = parsed(BEGIN, FILE, END) or ()
    assert outline == Outline(
        directory="/models/x",
        files=[OutlinedFile(name="config.json", size=2, start=zlib.compress(b"{}"))],
    )
    assert parsed(END) == (None,)
    assert parsed(BEGIN, FILE) is None
    assert parsed() is None


HOSTILE = {
    "noise": ("Welcome to Ubuntu",),
    "no object": ([1],),
    "nothing": ({},),
    "unknown field": ({**BEGIN, "more": 1},),
    "nested": ("[" * 100_000,),
    "another thing": ({**BEGIN, "at": 1},),
    "negative": ({**BEGIN, "at": -1},),
    "twice": (BEGIN, BEGIN),
    "a file of nothing": (FILE,),
    "after the end": (END, BEGIN),
    "long path": ({**BEGIN, "directory": "/" + "x" * 5000},),
    "no commit": ({**BEGIN, "commit": "../.."},),
    "commit and a line": ({**BEGIN, "commit": COMMIT + "\n"},),
    "not base64": (BEGIN, {**FILE, "start": "*"}),
    "negative size": (BEGIN, {**FILE, "size": -1}),
    "size of no disk": (BEGIN, {**FILE, "size": 1 << 62}),
    "size as text": (BEGIN, {**FILE, "size": "2"}),
    **{
        f"name {name!r}": (BEGIN, {**FILE, "name": name})
        for name in (
            "../config.json",
            "a/b.safetensors",
            "/etc/x.safetensors",
            "..",
            "C:\\x.safetensors",
            "x\n.safetensors",
            "x\u202e.safetensors",
            "\ud800.safetensors",
            "\0.safetensors",
            "x" * 250 + ".safetensors",
            "tokenizer.py",
        )
    },
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE.keys())
def test_unexpected_output_is_refused(lines):
    with pytest.raises(FactError, match="reading checkpoints: the node printed") as caught:
        parsed(*lines)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    assert len(caught.value.what) < 300


def test_an_answer_without_an_end(monkeypatch):
    monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 1 << 20)
    parser = OutlineParser([MetadataRequest.of("/models/x")])
    for _ in range(16):
        parser.feed(b"x" * (1 << 16))
    with pytest.raises(FactError, match="more than 1 MiB"):
        parser.feed(b"x")


def test_files_without_an_end(monkeypatch):
    monkeypatch.setattr(module, "MOST_FILES", 3)
    lines = [{**FILE, "name": f"{number}.safetensors"} for number in range(4)]
    assert parsed(BEGIN, *lines[:3], END)
    with pytest.raises(FactError):
        parsed(BEGIN, *lines)


def outlined(*files: tuple[str, int, bytes]) -> Outline:
    return Outline(
        directory="/models/x",
        files=[OutlinedFile(name=name, size=size, start=start) for name, size, start in files],
    )


BOMB = zlib.compress(bytes(40 << 20))
STARTS = {
    "longer than its file": ("config.json", 1, zlib.compress(b"{}")),
    "longer than its kind": ("README.md", 1 << 40, zlib.compress(bytes(1 << 17))),
    "a bomb": ("config.json", 1 << 40, BOMB),
    "not packed": ("config.json", 2, b"{}"),
    "not whole": ("config.json", 100, zlib.compress(b"0123456789" * 10)[:-6]),
    "more behind it": ("config.json", 2, zlib.compress(b"{}") + b"more"),
    "nothing": ("config.json", 2, b""),
}


@pytest.mark.parametrize("file", STARTS.values(), ids=STARTS.keys())
def test_invalid_first_bytes_are_refused(file):
    with pytest.raises(
        FactError, match=r"^spark1:/models/x/.*: the node's copy of its first bytes"
    ) as caught:
        read_outline(outlined(file), MetadataRequest.of("/models/x"), "spark1")
    assert "/tmp" not in str(caught.value)


def test_first_bytes_of_all_files_together_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNPACKED_BYTES", 1000)
    files = [(f"{number}.safetensors", 600, zlib.compress(bytes(600))) for number in range(2)]
    with pytest.raises(FactError, match="longer than 400 bytes"):
        read_outline(outlined(*files), MetadataRequest.of("/models/x"), "spark1")


def test_a_file_listed_twice_is_refused():
    file = ("config.json", 2, zlib.compress(b"{}"))
    with pytest.raises(
        FactError, match=r"spark1:/models/x/config.json: .* cannot be written on this machine"
    ):
        read_outline(outlined(file, file), MetadataRequest.of("/models/x"), "spark1")


def test_no_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(FactError, match="spark1:/models/x: no temporary directory can be made") as caught:
        read_outline(outlined(), MetadataRequest.of("/models/x"), "spark1")
    assert "TMPDIR" in caught.value.do


def test_nothing_is_left_behind(make_checkpoint, llama_weights, monkeypatch, tmp_path):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    directory = make_checkpoint(weights=llama_weights())
    through(directory)
    no_header(directory)
    with pytest.raises(FactError):
        through(directory)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["modules.json", "config_sentence_transformers.json"])
def test_an_embedding_model_is_refused_with_the_same_words(make_checkpoint, llama_weights, name):
    directory = make_checkpoint(weights=llama_weights())
    (directory / name).write_text("[]" * 100_000)
    here, there = refused(directory)
    assert here == there
    assert f"by its file {name}" in here
    assert "engine: custom" in here


# --- GGUF models ------------------------------------------------------------------------------------------------------


def gguf_directory(tmp_path: Path) -> Path:
    """One model in a file, another in shards of a directory, and a tower."""
    shards = llama_shards(kind=Q8_0)
    for name, content in {
        "a-Q4_K_M.gguf": llama_gguf(),
        "UD-Q8_0/a-UD-Q8_0-00001-of-00002.gguf": shards[0],
        "UD-Q8_0/a-UD-Q8_0-00002-of-00002.gguf": shards[1],
        "mmproj-F16.gguf": tower_gguf(),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_gguf_file_of_a_node_without_its_weights(tmp_path):
    file = gguf_directory(tmp_path / "models") / "a-Q4_K_M.gguf"
    wanted = MetadataRequest.of(str(file))
    (outline,) = ask(wanted)
    assert outline is not None
    found = read_outline(outline, wanted, "spark1")
    assert found == read_checkpoint(file)
    assert (found.id, found.path) == (str(file), file.parent)
    starts = {one.name: len(zlib.decompress(one.start)) for one in outline.files}
    assert 0 < starts["a-Q4_K_M.gguf"] < len(llama_gguf()) / 10
    assert starts["UD-Q8_0/a-UD-Q8_0-00001-of-00002.gguf"] == 0
    assert found.gguf is not None
    assert found.gguf.mmproj == "mmproj-F16.gguf"


def test_a_directory_with_one_gguf_model_and_one_with_several(tmp_path):
    directory = gguf_directory(tmp_path / "models")
    here, there = refused(directory)
    assert here == there
    assert "has 2 GGUF models: Q4_K_M (" in there
    (directory / "a-Q4_K_M.gguf").unlink()
    assert through(directory) == read_checkpoint(directory)
    assert ask(MetadataRequest.of(str(directory / "missing.gguf"))) == (None,)


def test_a_tag_in_the_cache_of_a_node(tmp_path):
    """Each tag has a reference of its own, which counts more than the branch's."""
    folder = tmp_path / "models--org--a"
    gguf_directory(folder / "snapshots" / COMMIT)
    newer = "f" * 40
    (folder / "snapshots" / newer).mkdir()
    (folder / "snapshots" / newer / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(newer)
    (folder / "refs" / "main:UD-Q8_0").write_text(COMMIT)
    eight, four = MetadataRequest.of("org/a:ud-q8_0"), MetadataRequest.of("org/a:Q4_K_M")
    found, missing = ask(eight, four, cache=tmp_path)
    assert missing is None
    assert found is not None
    facts = read_outline(found, eight, "spark1")
    assert (facts.id, facts.revision) == ("org/a:UD-Q8_0", COMMIT)
    assert facts.path == folder / "snapshots" / COMMIT


def test_a_damaged_gguf_file_is_refused_alike_everywhere(tmp_path):
    for content in (
        b"GGUF" + bytes(40),
        llama_gguf()[:500],
        b"version https://git-lfs",
        llama_gguf()[:-5000],
    ):
        (tmp_path / "a-Q4_K_M.gguf").write_bytes(content)
        here, there = refused(tmp_path)
        assert here == there


@pytest.mark.parametrize(
    "name", ["../a.gguf", "/a.gguf", "a/b/c.gguf", ".x/a.gguf", "a//b.gguf", "a\\b/c.gguf", "a/b\n.gguf"]
)
def test_a_node_cannot_name_gguf_files_elsewhere(name):
    parser = OutlineParser((MetadataRequest.of("/models"),))
    parser.feed(b'{"at": 0, "directory": "/models", "commit": ""}\n')
    line = {"at": 0, "name": name, "size": 10, "start": b64encode(zlib.compress(b"GGUF")).decode()}
    with pytest.raises(FactError, match="the node printed"):
        parser.feed(json.dumps(line).encode() + b"\n")
