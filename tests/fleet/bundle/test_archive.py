import stat
import tarfile

import pytest

from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.bundle.archive import replaced_words, write_bundle
from sparkfleet.fleet.bundle.collect import BundleContents, BundlePart


def test_a_report_is_one_private_file_with_a_description(tmp_path):
    found = BundleContents((BundlePart("events.txt", "a\n"),), {"mac": 3}, ("nodes/b: off",))
    path = tmp_path / "report.tar.gz"
    assert write_bundle(path, found) == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["sparkfleet-report/README.txt", "sparkfleet-report/events.txt"]
        text = archive.extractfile("sparkfleet-report/README.txt").read().decode()
    assert "the same one everywhere: 3 × mac." in text
    assert "Not there: nodes/b: off." in text
    with pytest.raises(SparkfleetError, match="exists already"):
        write_bundle(path, found)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    found = BundleContents((BundlePart("events.txt", "a\n"),), {}, ())
    with pytest.raises(
        SparkfleetError, match=r"none/report\.tar\.gz cannot be written: No such file or directory"
    ):
        write_bundle(tmp_path / "none" / "report.tar.gz", found)


def test_nothing_replaced_is_said():
    assert replaced_words({}) == "nothing"


def test_a_name_that_is_too_long_is_an_error_in_words(tmp_path):
    """It ended with a traceback."""
    with pytest.raises(SparkfleetError, match="cannot be written: File name too long"):
        write_bundle(tmp_path / ("a" * 300), BundleContents((), {}, ()))
