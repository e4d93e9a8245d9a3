"""The inventory's line after the head was moved, and moves that are refused."""

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.lifecycle.move_head import head_named, name_head, plan_move
from sparkfleet.fleet.session import Session

INVENTORY = "# mine\nfleet: home\nhead: a  # the quiet one\nnodes:\n  a: {address: local}\n"


def test_only_the_line_of_the_head_changes(tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text(INVENTORY)
    file.chmod(0o640)
    assert name_head(file, "a", "b")
    assert file.read_text() == INVENTORY.replace("head: a", "head: b")
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("text", ["fleet: home\n", "{head: a}\n", "head: ab\n", "head: a\n---\nhead: a\n"])
def test_a_line_that_is_not_there_once_is_left_to_a_person(text):
    assert head_named(text, "a", "b") is None


@pytest.mark.parametrize(("node", "words"), [("this", "this is the head already"), ("x", 'has no node "x"')])
async def test_a_move_to_nowhere_is_refused(tmp_path, node, words):
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    async with Session(file) as session:
        with pytest.raises(SpecError, match=words):
            await plan_move(session, node)
