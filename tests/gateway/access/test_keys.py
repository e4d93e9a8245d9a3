import base64
import hashlib
import hmac

import pytest

from sparkfleet.gateway.access.keys import authenticate, engine_token, generate

ALICE, ALICE_ENTRY = generate("alice")
BOB, BOB_ENTRY = generate("bob")
KNOWN = (ALICE_ENTRY, BOB_ENTRY)


def test_a_key_has_256_random_bits_and_only_its_digest_is_stored() -> None:
    plain, entry = generate("laptop")
    assert plain.startswith("sk-sf-")
    assert len(base64.urlsafe_b64decode(plain.removeprefix("sk-sf-") + "=")) == 32
    assert entry.name == "laptop"
    assert entry.sha256 == hashlib.sha256(plain.encode()).hexdigest()
    assert plain not in entry.model_dump_json()


def test_no_two_keys_are_alike() -> None:
    made = [generate("same") for _ in range(50)]
    assert len({plain for plain, _ in made}) == 50
    assert len({entry.id for _, entry in made}) == 50


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"authorization", f"Bearer {ALICE}")], "alice"),
        ([(b"authorization", f"bearer {BOB}")], "bob"),
        ([(b"authorization", f"Bearer  {BOB} ")], "bob"),
        ([(b"x-api-key", ALICE)], "alice"),
        ([(b"authorization", "Bearer dummy"), (b"x-api-key", BOB)], "bob"),
        ([(b"authorization", f"Basic {ALICE}")], None),
        ([(b"authorization", ALICE)], None),
        ([(b"authorization", f"Bearer {ALICE}x")], None),
        ([(b"authorization", f"Bearer {ALICE[:-1]}")], None),
        ([(b"authorization", "Bearer ")], None),
        ([(b"authorization", "")], None),
        ([(b"cookie", ALICE)], None),
        ([(b"x-api-key", ALICE_ENTRY.sha256)], None),
        ([(b"x-api-key", "k" * 100_000)], None),
        ([], None),
    ],
)
def test_who_is_let_in(headers: list[tuple[bytes, str]], name: str | None) -> None:
    found = authenticate([(field, value.encode()) for field, value in headers], KNOWN)
    assert (found.name if found else None) == name


def test_nobody_is_let_in_without_keys() -> None:
    assert authenticate([(b"authorization", b"Bearer ")], ()) is None


def test_bytes_that_are_no_text_are_no_key() -> None:
    assert authenticate([(b"x-api-key", b"\xff\xfe\x00")], KNOWN) is None


def test_every_stored_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(mine: str, theirs: str) -> bool:
        compared.append(theirs)
        return mine == theirs

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert authenticate([(b"x-api-key", ALICE.encode())], KNOWN) == ALICE_ENTRY
    assert compared == [ALICE_ENTRY.sha256, BOB_ENTRY.sha256]


def test_an_engine_token_belongs_to_one_group_and_one_secret() -> None:
    tokens = {engine_token(secret, group) for secret in (b"a" * 32, b"b" * 32) for group in ("g0", "g1")}
    assert len(tokens) == 4
    assert engine_token(b"a" * 32, "g0") == engine_token(b"a" * 32, "g0")
    assert all(token.isalnum() and len(token) == 64 for token in tokens)
