"""Notes of the last end of an engine."""

import pytest

from sparkfleet.group.end_note import EndNote


def note(tmp_path, boot="first"):
    return EndNote(tmp_path / "ended", "spark1", boot)


def test_an_engine_that_served_before_a_reboot_has_that_as_its_end_once(tmp_path):
    note(tmp_path).note_serving()
    assert note(tmp_path).take() == "", "it may still run"
    words = "spark1 was switched off or restarted while its engine served; the engine is loaded again"
    assert note(tmp_path, "second").take() == words
    assert note(tmp_path, "second").take() == ""


def test_a_reason_that_was_left_is_the_end_whatever_the_boot(tmp_path):
    one = note(tmp_path)
    one.note_serving()
    one.leave("out of memory")
    assert note(tmp_path, "second").take() == "out of memory"
    assert note(tmp_path, "second").take() == ""


def test_an_intended_stop_leaves_no_end(tmp_path):
    one = note(tmp_path)
    one.note_serving()
    one.forget()
    assert note(tmp_path, "second").take() == ""


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"boot": null}', b"\xff", b"7"])
def test_a_note_that_cannot_be_read_is_no_end(tmp_path, content):
    (tmp_path / "ended").write_bytes(content)
    assert note(tmp_path).take() == ""


def test_a_note_that_cannot_be_written_stops_no_engine(tmp_path):
    one = EndNote(tmp_path / "missing" / "file" / "ended", "spark1", "first")
    (tmp_path / "missing").write_bytes(b"")
    one.note_serving()
    one.leave("out of memory")
    one.forget()
    assert one.take() == ""
