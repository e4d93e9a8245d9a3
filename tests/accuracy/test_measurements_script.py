"""`scripts/measurements.py`: rows are added to those that are packaged, and copies are left out."""

import csv
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("measurements_script", ROOT / "scripts" / "measurements.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


@pytest.fixture
def added(tmp_path, monkeypatch, capsys):
    """added(rows) → the packaged text before, the text after rows were added, and what was printed."""
    target = tmp_path / "benchmarks.csv"
    shutil.copyfile(script.TARGET, target)
    monkeypatch.setattr(script, "TARGET", target)

    def added(*rows):
        path, before = tmp_path / "rows.csv", target.read_text()
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        monkeypatch.setattr(sys, "argv", ["measurements.py", str(path)])
        script.main()
        return before, target.read_text(), capsys.readouterr().out

    return added


def last():
    return script.read_rows(script.TARGET)[-1]


def test_a_row_is_added_to_the_packaged_ones_and_a_copy_is_not(added):
    row = last()
    before, after, out = added(row | {"id": "copy"}, row | {"id": "new", "decode_tps_per_request": "1.25"})
    assert after.startswith(before)
    (line,) = after[len(before) :].splitlines()
    assert line.startswith("new,")
    assert "1 new rows, 1 copies left out" in out


def test_a_row_with_another_column_leaves_the_file_as_it_is(added):
    before = script.TARGET.read_text()
    with pytest.raises(ValueError, match="odd"):
        added(last() | {"id": "new", "decode_tps_per_request": "1.25", "odd": "1"})
    assert script.TARGET.read_text() == before


def test_a_figure_in_another_unit_is_named_and_leaves_the_file_as_it_is(added):
    before = script.TARGET.read_text()
    with pytest.raises(SystemExit, match=r"new: decode_tps_per_request is 48 ms/tok: expected .* tok/s"):
        added(last() | {"id": "new", "decode_tps_per_request": "48 ms/tok"})
    assert script.TARGET.read_text() == before
