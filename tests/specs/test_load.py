"""Files: found or not, readable or not, several at once; every line of an error names its file."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import (
    MAX_FINDINGS,
    NoFile,
    deployment_of,
    load_deployment,
    load_deployments,
    load_inventory,
    parse_deployment,
    parse_inventory,
    to_yaml,
)

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).parents[0] / "examples"
MAPPING = "Expected a mapping (`key: value` lines)."


@pytest.mark.parametrize(
    "path", [ROOT / "inventory.yaml", *EXAMPLES.glob("inventory-*.yaml")], ids=lambda path: path.name
)
def test_inventories_load(path: Path) -> None:
    assert parse_inventory(to_yaml(load_inventory(path))) == load_inventory(str(path))


@pytest.mark.parametrize(
    "path",
    [*(ROOT / "deployments").glob("*.yaml"), *EXAMPLES.glob("deployment-*.yaml")],
    ids=lambda path: path.name,
)
def test_deployments_load(path: Path) -> None:
    assert parse_deployment(to_yaml(load_deployment(path))) == load_deployment(str(path))


def test_the_embedded_default() -> None:
    inventory = load_inventory(ROOT / "inventory.yaml")
    assert (inventory.fleet, inventory.head) == ("home", "this")
    assert inventory.nodes["this"].is_local
    assert (inventory.gateway.host, inventory.gateway.port) == ("127.0.0.1", 8000)
    (tiny,) = load_deployment(ROOT / "deployments" / "tiny-local.yaml").resolved()
    assert (tiny.model, tiny.context, tiny.concurrency) == ("builtin:tiny", 512, 16)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", f": is empty. {MAPPING}"),
        (b"- a\n- b", f":1: found a list of 2. {MAPPING}"),
        (b"just words", f':1: found "just words". {MAPPING}'),
        (b"\x7fELF\0\0", ": is binary. Expected a YAML file in UTF-8."),
        (b"name: x\nmodel: \xff", ":2: the byte 0xff is not UTF-8. Expected a YAML file in UTF-8."),
        ("name: x".encode("utf-16"), ": is binary. Expected a YAML file in UTF-8."),
        (b"#" * (1 << 20) + b"#", ": is larger than 1 MiB. Expected a YAML file."),
    ],
)
def test_a_file_that_is_no_spec(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    assert str(caught.value) == f"{path}{expected}"


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nmodel: a/b\r\n")
    assert load_deployment(path).name == "x"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing.yaml", "no such file. Expected a YAML file."),
        ("", "is a directory. Expected a YAML file."),
        ("d.yaml/x", "cannot be read: Not a directory. Expected a YAML file."),
        ("a\0b", "cannot be read: embedded null byte. Expected a YAML file."),
    ],
)
def test_a_path_that_is_no_file(tmp_path: Path, path: str, expected: str) -> None:
    (tmp_path / "d.yaml").touch()
    with pytest.raises(SpecError) as caught:
        load_inventory(f"{tmp_path}/{path}")
    assert caught.value.what == f"{tmp_path}/{path}: {expected}".replace("\0", "\\x00")
    assert isinstance(caught.value, NoFile) == (path == "missing.yaml")
    assert ("sparkfleet init" in caught.value.do) == (path == "missing.yaml")


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    text = "fleet: Home\nnodes:\n  a: {address: local, usr: u}\n  2: {}\nfleet: x\nhead: 3\n"
    with pytest.raises(SpecError) as caught:
        parse_inventory(text, "i.yaml")
    known = "Known: address, user, port, host_key, identity_file, jump, engines."
    assert str(caught.value).splitlines() == [
        'i.yaml:1: fleet: found "Home". Expected a-z, 0-9 and inner dashes, at most 32 characters, such as "home".',
        f'i.yaml:3: nodes.a.usr: unknown field "usr". Did you mean "user"? {known}',
        "i.yaml:4: nodes: the key 2 is not text. Expected text; put it in quotes.",
        "i.yaml:5: fleet: already given on line 1. Expected once.",
        "i.yaml:6: head: found the number 3. Expected text; put it in quotes.",
    ]


def test_a_file_of_the_other_kind() -> None:
    with pytest.raises(SpecError) as caught:
        parse_inventory("name: x\nmodel: a/b\nnodes: [a]", "i.yaml")
    assert str(caught.value) == (
        "i.yaml:2: model: is a field of a deployment, which this file seems to be. Expected an inventory."
    )
    with pytest.raises(SpecError) as caught:
        parse_deployment("fleet: x\nhead: a\nnodes: {a: {address: local}}", "d.yaml")
    assert str(caught.value) == (
        "d.yaml:1: fleet: is a field of an inventory, which this file seems to be. Expected a deployment."
    )


def test_missing_fields() -> None:
    with pytest.raises(SpecError) as caught:
        parse_inventory("gateway: {}", "i.yaml")
    assert str(caught.value).splitlines() == [
        "i.yaml:1: fleet: missing. Expected a name for the fleet: a-z, 0-9 and inner dashes.",
        "i.yaml:1: head: missing. Expected the node that runs the controller.",
        "i.yaml:1: nodes: missing. Expected the machines, by name.",
    ]


def test_too_many_problems_are_counted() -> None:
    text = "name: x\nmodel: a/b\n" + "".join(f"k{number}: 1\n" for number in range(MAX_FINDINGS + 7))
    with pytest.raises(SpecError) as caught:
        parse_deployment(text, "d.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == MAX_FINDINGS + 1
    assert lines[-1] == "d.yaml: and 7 more problems."


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("a b", '"a b"'),
        ("a.b", '"a.b"'),
        ("[key]", '"[key]"'),
        ("\\u2028\\e[31m", '"\\u2028\\x1b[31m"'),
        ("x" * 100, f'"{"x" * 59}…"'),
    ],
)
def test_strange_keys_stay_on_their_line(key: str, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_deployment(f'name: x\nmodel: a/b\n"{key}": 1', "d.yaml")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"d.yaml:3: {shown}: unknown field {shown}.")
    assert " Known: " in line


def test_a_strange_file_name_stays_on_its_line() -> None:
    with pytest.raises(SpecError, match=r"^a\\nb\\x1b:1: found a list of 0"):
        parse_deployment("[]", "a\nb\x1b")


def test_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"name: {name}\nmodel: builtin:tiny")
    assert [found.name for found in load_deployments([tmp_path / "b", str(tmp_path / "a")])] == ["b", "a"]
    assert load_deployments([]) == ()


def test_names_are_unique_across_files_and_all_files_are_checked(tmp_path: Path) -> None:
    files = {
        "a": "name: x\nmodel: a/b",
        "b": "model: a/b\nname: x",
        "c": "name: y",
        "e": "name: x\nmodel: a/b\nengine: vlm",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        load_deployments(tmp_path / name for name in ("a", "b", "c", "missing", "e"))
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        'b:2: name: "x" is already the name in a:1. Expected one of its own.',
        "c:1: `model` or `variants`: neither is given. Expected exactly one of them.",
        "missing: no such file. Expected a YAML file.",
        'e:3: engine: unknown engine "vlm". Did you mean "vllm"? Known: auto, vllm, sglang, trtllm, llama.cpp, custom.',
        "Files that share a name are planned one at a time, or get names of their own.",
        "A model of the Hub needs no file: ORG/MODEL in its place, with the name of its owner.",
    ]


def test_a_dump_starts_with_the_name() -> None:
    assert (
        to_yaml(parse_deployment("context: 5\nmodel: a/b\nname: '1'"))
        == "name: '1'\nmodel: a/b\ncontext: 5\n"
    )


def test_a_directory_stands_for_its_deployments_and_leaves_inventories_out(tmp_path):
    (tmp_path / "b.yaml").write_text("name: b\nmodel: org/b\n")
    (tmp_path / "a.yml").write_text("name: a\nmodel: org/a\n")
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: this\nnodes: {this: {address: local}}\n")
    (tmp_path / "notes.txt").write_text("not read")
    assert [one.name for one in load_deployments([tmp_path])] == ["a", "b"]


def test_a_directory_without_deployments_and_a_broken_file_in_one_are_errors(tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: home\nhead: this\nnodes: {this: {address: local}}\n")
    with pytest.raises(SpecError, match="has no deployment"):
        load_deployments([tmp_path])
    (tmp_path / "x.yaml").write_text("name: [")
    with pytest.raises(SpecError, match=r"x\.yaml:1"):
        load_deployments([tmp_path])


def test_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: a\nmodel: org/a\n")))
    assert [one.name for one in load_deployments(["-"])] == ["a"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: a\nmodl: org/a\n")))
    with pytest.raises(SpecError, match="standard input:2: modl"):
        load_deployments(["-"])


class TestModelsInPlaceOfFiles:
    @pytest.mark.parametrize(
        ("given", "name", "model"),
        [
            ("Qwen/Qwen3.6-27B-FP8", "qwen3.6-27b-fp8", "Qwen/Qwen3.6-27B-FP8"),
            ("org/model@refs/pr/1", "model", "org/model@refs/pr/1"),
            ("https://huggingface.co/org/Model", "model", "org/Model"),
            (Path("https://hf.co/org/Model/tree/main"), "model", "org/Model@main"),
            ("builtin:tiny", "tiny", "builtin:tiny"),
            ("org/A_b--C", "a_b--c", "org/A_b--C"),
        ],
    )
    def test_names(self, given: str | Path, name: str, model: str) -> None:
        (found,) = load_deployments([given])
        assert found == Deployment(name=name, model=model)

    @pytest.mark.parametrize(
        "file", ["config.json", "adapter_config.json", "model_index.json", "m-Q4_K_M.gguf"]
    )
    def test_a_directory_with_a_model(self, tmp_path: Path, file: str) -> None:
        """Also one of a kind that is refused: reading it gives the reason."""
        checkpoint = tmp_path / "My-Model"
        checkpoint.mkdir()
        (checkpoint / file).write_text("{}")
        assert load_deployments([checkpoint]) == (Deployment(name="my-model", model=str(checkpoint)),)

    def test_files_come_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "org").mkdir()
        for missing in ("org/model", "other/model.yaml", "model", "a/b/c", "https://example.org/a"):
            with pytest.raises(SpecError, match="no such file"):
                load_deployments([missing])
        (tmp_path / "org" / "model").write_text("name: mine\nmodel: org/other\n")
        assert load_deployments(["org/model"]) == (Deployment(name="mine", model="org/other"),)

    def test_two_of_one_name(self) -> None:
        with pytest.raises(SpecError, match='"m" is already the name in one/M'):
            load_deployments(["one/M", "two/m"])

    @pytest.mark.parametrize("given", ["org/mo$del", "org/model@ ", "org/model@a..b\n", "builtin:TINY"])
    def test_what_no_model_is_called(self, given: str) -> None:
        with pytest.raises(SpecError, match="Expected"):
            load_deployments([given])


GGUF = "unsloth/Qwen3-30B-A3B-GGUF"
PAGE = f"https://huggingface.co/{GGUF}"


@pytest.mark.parametrize(
    ("given", "model", "name"),
    [
        (f"{GGUF}:Q4_K_M", f"{GGUF}:Q4_K_M", "qwen3-30b-a3b-gguf-q4_k_m"),
        (f"{GGUF}@v1:Q8_0", f"{GGUF}@v1:Q8_0", "qwen3-30b-a3b-gguf-q8_0"),
        (f"{PAGE}:Q8_0", f"{GGUF}:Q8_0", "qwen3-30b-a3b-gguf-q8_0"),
        (
            f"{PAGE}?show_file_info=Qwen3-30B-A3B-UD-Q4_K_XL.gguf",
            f"{GGUF}:UD-Q4_K_XL",
            "qwen3-30b-a3b-gguf-ud-q4_k_xl",
        ),
        (f"{PAGE}/blob/main/Qwen3-Q4_K_M.gguf", f"{GGUF}:Q4_K_M", "qwen3-30b-a3b-gguf-q4_k_m"),
        (
            f"{PAGE}/resolve/0123abc/BF16/Qwen3-BF16-00001-of-00002.gguf?download=true",
            f"{GGUF}@0123abc:BF16",
            "qwen3-30b-a3b-gguf-bf16",
        ),
        ("/models/Qwen3-Q4_K_M.gguf", "/models/Qwen3-Q4_K_M.gguf", "qwen3-q4_k_m"),
    ],
)
def test_a_gguf_model_in_place_of_a_file(given, model, name):
    found = deployment_of(given)
    assert found is not None
    assert (found.model, found.name) == (model, name)


def test_a_gguf_file_here_is_given_by_its_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "a-Q4_K_M.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    found = deployment_of("a-Q4_K_M.gguf")
    assert found is not None
    assert found.model == str(tmp_path / "a-Q4_K_M.gguf")


@pytest.mark.parametrize(
    "address", [f"{PAGE}/blob/main/Qwen3-Q4_K_M.gguf", f"{PAGE}?show_file_info=Qwen3-Q4_K_M.gguf"]
)
def test_the_address_of_a_gguf_file_in_a_deployment_is_corrected(address):
    with pytest.raises(SpecError, match=re.escape(f"`model: {GGUF}:Q4_K_M`")):
        parse_deployment(f"name: a\nmodel: {address}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: Tiny\nmodel: builtin:tiny\n", 'at most 63 characters, such as "tiny".'),
        ("name: tiny\nmodel: builtin:Tiny\n", 'or an absolute path, such as "builtin:tiny".'),
        ("name: my model\nmodel: builtin:tiny\n", "at most 63 characters."),
        ("name: tiny\n model: builtin:tiny\n", "with the keys of one mapping in one column."),
        ("name: tiny model: builtin:tiny\n", "Expected one `key: value` a line"),
        ('"name": "tiny", "model": "m"\n', "Expected one `key: value` a line"),
    ],
)
def test_what_would_be_right_is_named(text, words):
    with pytest.raises(SpecError) as refused:
        parse_deployment(text, "d.yaml")
    assert words in str(refused.value)
