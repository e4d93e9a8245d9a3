from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """No fleet that runs here, and nothing that was downloaded here."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def sparkfleet(monkeypatch, capsys):
    """sparkfleet("plan", …) → (exit code, standard output, standard error)."""
    from sparkfleet.cli import main

    def run(*argv):
        monkeypatch.setattr("sys.argv", ["sparkfleet", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture
def deployments():
    return ROOT / "deployments"


@pytest.fixture
def two_sparks():
    return ROOT / "docs" / "examples" / "inventory-two-sparks.yaml"
