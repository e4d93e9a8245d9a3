import json

import pytest

COLUMNS = (
    "id,source_url_or_repo_path,nodes,model,quant,engine,tp,pp,spec_method,prompt_tokens,gen_tokens,concurrency,"
    "prefill_tps,ttft_ms,decode_tps_per_request,decode_tps_aggregate,notes"
)
ROW = "x1,github:me/mine,1,Qwen/Qwen3.6-27B-FP8,fp8,sglang,1,1,none,2048,256,1,1400,1480,7.6,7.6,"


def rows(tmp_path, *lines):
    file = tmp_path / "rows.csv"
    file.write_text("\n".join((COLUMNS, *lines)) + "\n")
    return file


def test_the_contract_of_json(sparkfleet, tmp_path):
    code, out, err = sparkfleet(
        "accuracy", rows(tmp_path, ROW, "x2" + ROW[2:].replace(",fp8,", ",,")), "--json"
    )
    body = json.loads(out)
    assert (code, err, body["version"]) == (0, "", 1)
    cell = body["metrics"]["decode_tps_per_request"]["none"]
    assert (cell["rows"], cell["predicted"]) == (2, 1)
    assert cell["median_ape"] < 0.5
    assert sum(body["declined"].values()) == 1


def test_for_people(sparkfleet, tmp_path):
    code, out, _ = sparkfleet("accuracy", rows(tmp_path, ROW))
    assert code == 0
    assert "decode_tps_per_request" in out


def test_without_a_file_the_packaged_rows_are_predicted_and_called_fitted(sparkfleet):
    code, out, err = sparkfleet("accuracy")
    assert (code, err) == (0, "")
    assert int(out.split()[0]) > 3000
    assert "In sample: the factors were fitted on these rows." in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (..., "is a directory"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"", "has no rows with a `model` column"),
    ],
)
def test_a_file_that_is_none(sparkfleet, tmp_path, content, said):
    file = tmp_path / "given.csv"
    if content is ...:
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    code, out, err = sparkfleet("accuracy", file)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"error: {file}: {said}. Expected a CSV file of measurements, with a header.",
        "Nothing is predicted.",
        "Give one with the columns of sparkfleet/knowledge/measurements/benchmarks.csv.",
    ]


@pytest.mark.parametrize(("option", "said"), [("--configs", "JSON"), ("--head-to-heads", "head-to-heads")])
def test_further_files_that_are_not_there(sparkfleet, tmp_path, option, said):
    code, _, err = sparkfleet("accuracy", rows(tmp_path, ROW), option, tmp_path / "none")
    assert code == 1
    assert "none: no such file. Expected a" in err.splitlines()[0]
    assert said in err.splitlines()[0]


def test_decisions_of_a_file(sparkfleet, tmp_path):
    lines = (
        ROW,
        ROW.replace("none", "nextn").replace("7.6", "22.6"),
        ROW.replace("sglang", "vllm").replace("x1", "x3"),
    )
    code, out, err = sparkfleet("accuracy", "--decisions", rows(tmp_path, *lines), "--json")
    body = json.loads(out)
    assert (code, err, body["version"], body["decisions"]) == (0, "", 1, 1)
    assert body["table"][0]["best"] == "sglang · mtp · fp8"
    _, table, _ = sparkfleet("accuracy", "--decisions", rows(tmp_path, *lines), "--markdown")
    assert "| qwen3.6-27b | 1 | interactive |" in table


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--markdown",), "--markdown is a form of --decisions."),
        (("--decisions", "--configs", "c.json"), "--decisions takes neither --configs nor --head-to-heads."),
        (
            ("--decisions", "--head-to-heads", "h.csv"),
            "--decisions takes neither --configs nor --head-to-heads.",
        ),
    ],
)
def test_options_that_would_be_ignored_are_refused(sparkfleet, tmp_path, given, said):
    code, out, err = sparkfleet("accuracy", rows(tmp_path, ROW), *given)
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == f"error: {said}"
