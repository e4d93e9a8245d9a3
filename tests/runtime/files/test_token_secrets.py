import pytest

from sparkfleet.errors import ControlError
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.token_secrets import SecretLookup, TokenSecrets, mark_of

OLD, NEW, NEWER = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def paths(tmp_path):
    """A state directory with the fleet's first secret."""
    made = FleetPaths(tmp_path / "home")
    made.root.mkdir()
    made.engine_secret.write_text(OLD)
    return made


def test_a_change_keeps_the_former_secret_until_it_is_finished():
    changed = TokenSecrets(current=OLD).changed(NEW)
    assert changed.every == (NEW, OLD)
    assert changed.for_metrics == OLD  # engines that run take this one, and those that start take both
    assert changed.named(mark_of(OLD)) == OLD
    assert changed.finished() == TokenSecrets(current=NEW)
    assert changed.finished().named(mark_of(OLD)) is None


def test_the_file_is_what_was_written():
    changed = TokenSecrets(current=OLD).changed(NEW)
    assert TokenSecrets.parse(changed.text()) == changed


@pytest.mark.parametrize("text", ["", "\n", "secret", NEW + "\n" + "a" * 63, NEW + "\n" + "g" * 64])
def test_a_file_with_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        TokenSecrets.parse(text)


def test_a_mark_and_a_printed_object_do_not_show_the_secret():
    assert mark_of(OLD) not in (OLD[:8], mark_of(NEW))
    assert OLD not in repr(TokenSecrets(current=NEW, former=(OLD,)))
    assert NEW not in repr(TokenSecrets(current=NEW, former=(OLD,)))


def test_a_fleet_that_never_changed_them_has_its_first_secret(paths):
    assert paths.read_token_secrets() == TokenSecrets(current=OLD)


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"nothing"])
def test_a_spoilt_file_is_an_error_and_never_the_first_secret(paths, content):
    paths.engine_tokens.write_bytes(content)
    with pytest.raises(ControlError, match=r"engine\.tokens cannot be used"):
        paths.read_token_secrets()


def test_the_gateway_finds_the_secret_of_an_engine_that_started_before_and_after_the_change(paths):
    secret_of = SecretLookup(paths)
    assert secret_of(mark_of(OLD)) == OLD
    paths.engine_tokens.write_text(TokenSecrets(current=OLD).changed(NEW).text())
    assert secret_of(mark_of(NEW)) == NEW  # read again, without a restart
    assert secret_of(mark_of(OLD)) == OLD
    paths.engine_tokens.write_text(TokenSecrets(current=NEW).changed(NEWER).text())
    assert secret_of(mark_of(NEWER)) == NEWER
    assert secret_of(mark_of(NEW)) == NEW
    assert secret_of(mark_of(OLD)) == OLD  # an engine on a node that no change has reached


def test_an_engine_without_a_mark_has_the_present_secret(paths):
    paths.engine_tokens.write_text(TokenSecrets(current=OLD).changed(NEW).text())
    assert SecretLookup(paths)(None) == NEW
