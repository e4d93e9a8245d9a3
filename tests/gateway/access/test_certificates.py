"""The endpoint's certificates, on a real gateway with real TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from static_picker import StaticPicker

from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.certificates import DAYS, CertificateStore, check_files
from sparkfleet.gateway.app import GatewayApp
from sparkfleet.gateway.http.http_server import Server, serve
from sparkfleet.gateway.listening import GatewayTls

SECRET = b"5" * 64
GENERATED = GatewayTls(names=("10.1.2.3", "spark1"))
DAY_S = 86_400
Listen = Callable[[CertificateStore], Awaitable[Server]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    opened: list[tuple[GatewayApp, Server]] = []

    async def make(store: CertificateStore) -> Server:
        app = GatewayApp(StaticPicker([]))
        opened.append((app, await serve(app, "127.0.0.1", 0, tls=store.context)))
        return opened[-1][1]

    yield make
    for app, server in opened:
        await server.aclose()
        await app.aclose()


async def health(url: str, trust: ssl.SSLContext | aiohttp.Fingerprint) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/health", ssl=trust) as response:
        return str((await response.json())["status"])


def files(directory: Path, days: float = 90, name: str = "spark1") -> GatewayTls:
    """A self-signed certificate that is valid for so many days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=100))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "cert.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "key.pem").write_bytes(private)
    return GatewayTls(cert=str(directory / "cert.pem"), key=str(directory / "key.pem"))


async def test_a_client_that_knows_the_authority_accepts_the_generated_certificate(
    tmp_path: Path, listen: Listen
) -> None:
    store = CertificateStore(GENERATED, tmp_path / "tls", SECRET)
    server = await listen(store)
    assert server.url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cadata=store.present.authority)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    assert await health(server.url, trust) == "starting"
    assert await health(server.url.replace("127.0.0.1", "localhost"), trust) == "starting"
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await health(server.url, ssl.create_default_context())


async def test_a_program_of_ours_knows_the_certificate_under_any_address(
    tmp_path: Path, listen: Listen
) -> None:
    store = CertificateStore(files(tmp_path), tmp_path / "tls", SECRET)
    server = await listen(store)
    assert await health(server.url, aiohttp.Fingerprint(bytes.fromhex(store.present.sha256))) == "starting"
    with pytest.raises(aiohttp.ServerFingerprintMismatch):
        await health(server.url, aiohttp.Fingerprint(bytes(32)))
    assert not store.present.authority


async def test_http_without_tls_gets_no_answer_there(tmp_path: Path, listen: Listen) -> None:
    server = await listen(CertificateStore(GENERATED, tmp_path, SECRET))
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(server.url.replace("https", "http") + "/health")


def test_the_private_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    CertificateStore(GENERATED, tmp_path / "tls", SECRET)
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "tls" / "endpoint.pem").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (tmp_path / "tls" / "authority.pem").read_bytes()


def test_the_authority_is_the_same_on_another_head_and_another_one_in_another_fleet(tmp_path: Path) -> None:
    here = CertificateStore(GENERATED, tmp_path / "a", SECRET).present
    there = CertificateStore(GENERATED, tmp_path / "b", SECRET).present
    other = CertificateStore(GENERATED, tmp_path / "c", b"6" * 64).present
    assert here.authority == there.authority != other.authority
    assert here.sha256 != there.sha256


def test_a_generated_certificate_is_kept_until_its_names_secret_or_time_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CertificateStore(GENERATED, tmp_path, SECRET)
    assert CertificateStore(GENERATED, tmp_path, SECRET).present == first.present
    left = first.present.expires_at - datetime.now(UTC).timestamp()
    assert (DAYS - 1) * DAY_S < left <= DAYS * DAY_S
    named = CertificateStore(GatewayTls(names=("elsewhere",)), tmp_path, SECRET).present
    assert named != first.present
    first.refresh()
    renamed = first.present
    assert renamed != named
    monkeypatch.setattr("sparkfleet.gateway.access.certificates.RENEW_DAYS", DAYS)
    first.refresh()
    assert first.present != renamed
    assert not first.trouble


async def test_a_renewed_file_is_used_for_new_connections_without_a_new_listener(
    tmp_path: Path, listen: Listen
) -> None:
    store = CertificateStore(files(tmp_path), tmp_path, SECRET)
    server, before = await listen(store), store.present
    files(tmp_path, days=200)
    store.refresh()
    assert store.present.expires_at > before.expires_at + 100 * DAY_S
    assert await health(server.url, aiohttp.Fingerprint(bytes.fromhex(store.present.sha256))) == "starting"
    assert not store.trouble


async def test_a_file_that_cannot_be_used_leaves_the_certificate_as_it_is(
    tmp_path: Path, listen: Listen
) -> None:
    store = CertificateStore(files(tmp_path), tmp_path, SECRET)
    server, before = await listen(store), store.present
    (tmp_path / "cert.pem").write_text("half a cert")
    store.refresh()
    assert "cert.pem" in store.trouble
    assert store.present == before
    assert await health(server.url, aiohttp.Fingerprint(bytes.fromhex(before.sha256))) == "starting"
    (tmp_path / "cert.pem").unlink()
    store.refresh()
    assert "No such file" in store.trouble
    files(tmp_path)
    store.refresh()
    assert not store.trouble
    assert store.present != before


def test_files_that_cannot_serve_are_refused_with_the_reason(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    files(tmp_path, days=-1)
    files(other)
    cases = [
        (tmp_path / "cert.pem", tmp_path / "key.pem", "expired on"),
        (tmp_path / "cert.pem", other / "key.pem", "key values mismatch"),
        (other / "cert.pem", tmp_path / "none.pem", "No such file"),
        (other / "key.pem", other / "key.pem", "cannot be used"),
    ]
    for certificate, key, why in cases:
        with pytest.raises(ControlError, match=why):
            check_files(certificate, key)
    check_files(other / "cert.pem", other / "key.pem")


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    tls = files(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    sealed = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    Path(tls.key).write_bytes(pem)
    with pytest.raises(ControlError, match="password"):
        check_files(Path(tls.cert), Path(tls.key))
