"""Files with launch lines: read whole, selected by name, written without overwriting."""

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.convert import MOST_BYTES, convert, write_deployments
from sparkfleet.fleet.conversion.deployment_text import deployment_text

TWO = "vllm serve org/one\nvllm serve org/two -tp $TP\n"


@pytest.fixture
def script(tmp_path):
    def write(text):
        file = tmp_path / "run.sh"
        file.write_text(text)
        return str(file)

    return write


def test_all_of_them_with_a_value_from_outside(script):
    one, two = convert(script(TWO), {"TP": "2"})
    assert (one.deployment.model, two.deployment.parallel.tp) == ("org/one", 2)


@pytest.mark.parametrize("only", ["two", "org/two"])
def test_one_of_them(script, only):
    (found,) = convert(script(TWO), {"TP": "2"}, only)
    assert found.deployment.name == "two"


def test_one_that_is_not_there(script):
    with pytest.raises(SpecError, match=r"no launch line named.*It has one, two"):
        convert(script(TWO), {"TP": "2"}, "three")


def test_paths_begin_at_the_file(script, tmp_path):
    (found,) = convert(script("llama-server -m m.gguf"), {})
    assert found.deployment.model == f"{tmp_path}/m.gguf"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo", "sparkfleet plan ORG/NAME`"),
        ("ollama run qwen3:8b", "ORG/NAME:TAG"),
        ("docker run $IMAGE $CMD", "`--set IMAGE=VALUE`"),
    ],
)
def test_without_a_launch_line_it_names_the_way(script, text, words):
    with pytest.raises(SpecError, match="no launch line of an engine") as caught:
        convert(script(text), {})
    assert words in caught.value.do


def test_a_parameter_is_given_by_its_number(script):
    file = script('MODEL="$1"\nvllm serve $MODEL')
    with pytest.raises(SpecError, match=r"nothing sets \$1") as caught:
        convert(file, {})
    assert caught.value.do == "`--set 1=VALUE` sets it."
    assert [convert(file, {name: "org/m"})[0].deployment.model for name in ("1", "MODEL")] == ["org/m"] * 2


def test_what_was_assumed_is_in_the_file(script):
    (found,) = convert(script("vllm serve org/m -tp 2 --node-rank $R"), {})
    assert "# Read with:\n#   $R = 0, the first rank: " in deployment_text(found, "run.sh")


def test_a_value_that_nothing_uses_is_refused(script):
    with pytest.raises(SpecError, match="has no variable OTHER"):
        convert(script(TWO), {"OTHER": "2"})


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "large").write_bytes(b"a" * (MOST_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, words in (
        ("large", "longer than"),
        ("bytes", "no text"),
        ("none", "No such file"),
        (".", "directory"),
    ):
        with pytest.raises(SpecError, match=words):
            convert(str(tmp_path / name), {})


def test_files_are_written_once(script, tmp_path):
    found = convert(script(TWO), {"TP": "2"})
    paths = write_deployments(found, "run.sh", tmp_path / "made")
    assert [path.name for path in paths] == ["one.yaml", "two.yaml"]
    before = paths[0].read_text()
    with pytest.raises(SpecError, match=r"one\.yaml exists"):
        write_deployments(found, "run.sh", tmp_path / "made")
    assert paths[0].read_text() == before
    with pytest.raises(SpecError, match="written twice"):
        write_deployments((found[0], found[0]), "run.sh", tmp_path / "other")
    assert not (tmp_path / "other").exists()
