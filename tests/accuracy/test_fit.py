"""The fit of the factors, from published rows to the file that predictions read: `scripts/fit.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparkfleet.accuracy.rows import cases_of, read_rows
from sparkfleet.knowledge.measurements import BENCHMARKS
from sparkfleet.knowledge.published.factors import Factors

ROOT = Path(__file__).parents[2]


def test_a_fit_is_written_as_the_factors_that_predictions_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from fitting.factoring import fit, write

    rows = [row for row in read_rows(BENCHMARKS) if "Anemll" in row["source_url_or_repo_path"]]
    cases = list(cases_of(rows))
    assert len(cases) > 10
    found = fit(cases, lambda _: True, bands={"decode/none/none": 0.3}).factors
    write(found, tmp_path / "factors.yaml", "a test")
    read = yaml.safe_load((tmp_path / "factors.yaml").read_text())
    assert read.pop("version") == 1
    assert Factors.model_validate(read | {"validation": read["validation"] or {}}, strict=False) == found
    assert any(effect.n for effect in found.effects["decode"].values())
