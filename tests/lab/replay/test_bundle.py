"""Files of strangers: read only if they are bundles, and never beyond a limit or outside of memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.lab.errors import LabError
from sparkfleet.lab.replay import bundle
from sparkfleet.lab.replay.bundle import FOLDER, FORMAT, read_bundle

ANSWER = {"field": "user", "argv": ["id"], "exit_code": 0, "stdout": "uid=0(root)\n", "stderr": "", "missing": False,
          "late": False, "not_understood": ""}  # fmt: skip
END = {"netdev": "enp1s0f1np1", "rdma": "rocep1s0f1", "address": "<subnet-2>.10/24"}
INVENTORY = {
    "fleet": "home",
    "head": "<node-1>",
    "nodes": {"<node-1>": {"address": "<subnet-1>.21", "user": "<user-1>"}, "<node-2>": {"address": "local", "user": None}},
    "links": [{"nodes": ["<node-1>", "<node-2>"], "switch": None, "rails": [[END, END | {"address": "<subnet-2>.11/24"}]]}],
}  # fmt: skip
WELL: dict[str, Any] = {
    "README.txt": "text",
    "versions.json": {"version": FORMAT, "sparkfleet": "0.1.0"},
    "inventory.json": INVENTORY,
    "nodes/<node-1>/facts.json": [ANSWER],
    "nodes/<node-1>/logs/ray.log": "line\n",
}


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: Any) -> tuple[Any, bytes]:
    made = tarfile.TarInfo(name)
    made.size, made.type = len(content), kind
    for field, value in more.items():
        setattr(made, field, value)
    return made, content


def written(path: Path, parts: dict[str, Any], *more: tuple[Any, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, value in parts.items():
            text = value if isinstance(value, str) else json.dumps(value)
            archive.addfile(_sized(name, text), io.BytesIO(text.encode()))
        for made, content in more:
            archive.addfile(made, io.BytesIO(content))
    return path


def _sized(name: str, text: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(f"{FOLDER}/{name}")
    made.size = len(text.encode())
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "b.tar.gz"


def test_nodes_links_and_outputs_are_read(file: Path) -> None:
    fleet = read_bundle(written(file, WELL))
    assert [node.name for node in fleet.nodes] == ["<node-1>", "<node-2>"]
    assert fleet.nodes[0].output("id") == "uid=0(root)\n"
    assert fleet.nodes[1].answers == ()
    (link,) = fleet.links
    assert link.rails == ((("enp1s0f1np1", "<subnet-2>.10/24"), ("enp1s0f1np1", "<subnet-2>.11/24")),)


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (9, 9), (-9, 137), (None, 127)])
def test_exit_codes_are_those_of_a_shell(file: Path, code: int | None, expected: int) -> None:
    fleet = read_bundle(written(file, WELL | {"nodes/<node-1>/facts.json": [ANSWER | {"exit_code": code}]}))
    assert fleet.nodes[0].answers[0].exit_code == expected


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (f"{FOLDER}/../../etc/passwd", {}),
        ("/etc/passwd", {}),
        ("../x", {}),
        ("other/versions.json", {}),
        (f"{FOLDER}", {}),
        (f"{FOLDER}/nodes/..\\x", {}),
        (f"{FOLDER}/\x1b[2J", {}),
        (f"{FOLDER}/link", {"kind": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        (f"{FOLDER}/inventory.json", {"kind": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        (f"{FOLDER}/null", {"kind": tarfile.CHRTYPE}),
        (f"{FOLDER}/pipe", {"kind": tarfile.FIFOTYPE}),
        (f"{FOLDER}/nodes", {"kind": tarfile.DIRTYPE}),
        (f"{FOLDER}/sparse", {"kind": tarfile.GNUTYPE_SPARSE}),
    ],
)
def test_a_path_outside_and_a_part_that_is_no_file_are_refused(
    file: Path, name: str, more: dict[str, Any]
) -> None:
    written(file, WELL, entry(name, **more))
    before = set(file.parent.rglob("*"))
    with pytest.raises(
        LabError, match=r"which is not below sparkfleet-report/|a link, a directory or a device|no bundle"
    ) as error:
        read_bundle(file)
    assert "\x1b" not in str(error.value)
    assert set(file.parent.rglob("*")) == before, "nothing was unpacked"


def test_files_that_are_no_bundles_are_refused(tmp_path: Path, file: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(LabError) as error:
            read_bundle(path)
        return error.value.what

    assert "No such file" in refused(tmp_path / "none")
    assert "Is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refused(tmp_path / "pipe")
    assert "is no regular file" in refused(Path("/dev/zero"))
    file.write_bytes(b"")
    assert "is no bundle of sparkfleet" in refused(file)
    file.write_text("fleet: home\n")
    assert "cannot be unpacked" in refused(file)
    whole = written(tmp_path / "whole.tar.gz", WELL).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be unpacked" in refused(file)
    file.write_bytes(gzip.compress(b"text" * 1000))
    assert "cannot be unpacked" in refused(file)
    assert "no sparkfleet-report/versions.json" in refused(written(file, {"README.txt": "x"}))
    assert "it has no sparkfleet-report/inventory.json" in refused(
        written(file, {"versions.json": {"version": FORMAT}})
    )
    assert "versions.json is no JSON" in refused(written(file, WELL | {"versions.json": "["}))
    assert "is no JSON" in refused(written(file, WELL | {"inventory.json": "[" * 100_000}))
    assert "twice" in refused(written(file, WELL, (_sized("versions.json", "{}"), b"{}")))


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_version_is_named(file: Path, version: object) -> None:
    written(file, WELL | {"versions.json": {"version": version, "sparkfleet": "9.9\x1b[2J"}})
    with pytest.raises(
        LabError, match=f"bundle of version {version}; version {FORMAT} can be replayed"
    ) as error:
        read_bundle(file)
    assert error.value.means == "It was made by sparkfleet 9.9?[2J."


@pytest.mark.parametrize(
    "parts",
    [
        {"inventory.json": []},
        {"inventory.json": {"nodes": ["a"]}},
        {"inventory.json": {"nodes": {}}},
        {"inventory.json": {"nodes": {f"<node-{number}>": {"address": "local"} for number in range(65)}}},
        {"inventory.json": INVENTORY | {"links": [{}]}},
        {"inventory.json": INVENTORY | {"links": [{"nodes": ["<node-1>"] * 3, "rails": [[END] * 3]}]}},
        {"inventory.json": INVENTORY | {"links": [{"nodes": ["<node-1>"], "rails": [[END, END]]}]}},
        {"inventory.json": INVENTORY | {"links": [{"nodes": ["<node-1>"], "rails": [[END]] * 17}]}},
        {"nodes/<node-1>/facts.json": {}},
        {"nodes/<node-1>/facts.json": [ANSWER] * 501},
        {"nodes/<node-1>/facts.json": [ANSWER | {"argv": []}]},
        {"nodes/<node-1>/facts.json": [ANSWER | {"argv": "id"[:0]}]},
        {"nodes/<node-1>/facts.json": [ANSWER | {"argv": ["x"] * 101}]},
        {"nodes/<node-1>/facts.json": [ANSWER | {"exit_code": 10**9}]},
        {"nodes/<node-1>/facts.json": [ANSWER | {"exit_code": True}]},
        {"nodes/<node-1>/facts.json": [ANSWER | {"stdout": 7}]},
        {"nodes/<node-1>/facts.json": [{"argv": ["id"]}]},
    ],
)
def test_content_of_another_form_is_refused(file: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(LabError, match=r"is no bundle of sparkfleet|nodes and . links"):
        read_bundle(written(file, WELL | parts))


def test_no_limit_is_exceeded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = io.BytesIO()
    with gzip.GzipFile(fileobj=zeros, mode="wb", compresslevel=9) as packed:
        head = tarfile.TarInfo(f"{FOLDER}/nodes/x/logs/a.log")
        head.size = 1 << 40
        packed.write(head.tobuf())
        for _ in range(40):
            packed.write(bytes(1 << 20))
    file.write_bytes(zeros.getvalue())
    monkeypatch.setattr(bundle, "UNPACKED_BYTES", 16 << 20)
    tracemalloc.start()
    with pytest.raises(LabError, match="too large for a bundle: it has more, unpacked; at most 16 MiB"):
        read_bundle(file)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()

    written(file, WELL)
    monkeypatch.setattr(bundle, "PART_BYTES", 40)
    with pytest.raises(LabError, match=r"too large for a bundle: it has \d+ bytes in sparkfleet-report/"):
        read_bundle(file)
    monkeypatch.setattr(bundle, "MOST_PARTS", 1)
    with pytest.raises(LabError, match="more parts; at most 1"):
        read_bundle(file)
    monkeypatch.setattr(bundle, "FILE_BYTES", 100)
    with pytest.raises(LabError, match="too large for a bundle"):
        read_bundle(file)


@given(st.binary(max_size=3000), st.booleans(), st.integers(0, 600))
def test_any_bytes_give_a_fleet_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, packed: bool, at: int
) -> None:
    file = tmp_path_factory.mktemp("noise") / "b"
    whole = bytearray(gzip.decompress(written(file, WELL).read_bytes()))
    whole[at : at + len(noise)] = noise
    file.write_bytes(gzip.compress(bytes(whole), 1) if packed else noise)
    with suppress(LabError):
        assert read_bundle(file).nodes
