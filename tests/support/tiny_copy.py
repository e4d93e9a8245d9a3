"""The model of the tests of staging, and its copy in a Hub cache."""

MODEL = "tests/tiny"


def snapshot_of(cache, commit):
    """Contents of the files of this commit, by name, in a cache."""
    folder = cache / "models--tests--tiny"
    assert (folder / "refs" / "main").read_text() == commit
    snapshot = folder / "snapshots" / commit
    return {path.name: path.read_bytes() for path in snapshot.iterdir()}
