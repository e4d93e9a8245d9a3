import json

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


def test_a_file_that_is_not_there(sparkfleet, tmp_path):
    code, _, err = sparkfleet("accuracy", tmp_path / "none.csv")
    assert code == 1
    assert "none.csv" in err
