"""Certificates of an authority that is derived from a secret, in real TLS connections."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from sparkfleet.runtime.authority import FleetAuthority, IssuedCertificate, names_of_this_host

SECRET = b"5" * 64
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def issued(authority: FleetAuthority, *names: str, days: int = 30) -> IssuedCertificate:
    return authority.issue("sparkfleet test", names_of_this_host(names), days, BOTH)


def parsed(made: IssuedCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate)


def context(
    directory: Path, authority: FleetAuthority, made: IssuedCertificate, *, server: bool
) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    found.load_verify_locations(cadata=authority.pem().decode())
    found.verify_mode = ssl.CERT_REQUIRED
    file = directory / f"{server}.pem"
    file.write_bytes(made.key + made.certificate)
    found.load_cert_chain(file)
    return found


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> str:
    """Version of TLS after both ends have accepted each other; no socket is needed for that."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    theirs.write(b"x")
    assert ours.read(1) == b"x"
    return str(ours.version())


def test_one_secret_gives_one_authority_and_each_purpose_its_own():
    one, again = FleetAuthority(SECRET, "ray"), FleetAuthority(SECRET, "ray")
    assert one.pem() == again.pem()
    others = (FleetAuthority(SECRET, "endpoint"), FleetAuthority(b"6" * 64, "ray"))
    assert len({one.pem(), *(other.pem() for other in others)}) == 3
    made = parsed(issued(one))
    assert again.has_issued(made)
    assert not any(other.has_issued(made) for other in others)


def test_a_certificate_has_the_given_names_this_hosts_and_loopback_and_ends_when_it_should():
    found = parsed(issued(FleetAuthority(SECRET, "ray"), "10.1.2.3", "spark1", "0.0.0.0", "spärk", days=30))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert {ip_address("10.1.2.3"), ip_address("127.0.0.1"), ip_address("::1")} == set(addresses)
    assert {"spark1", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert "spärk" not in names.get_values_for_type(x509.DNSName)
    left = found.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left <= timedelta(days=30)


def test_both_ends_of_a_connection_accept_each_other_and_nobody_else(tmp_path):
    ours = FleetAuthority(SECRET, "ray")
    server = context(tmp_path, ours, issued(ours, "10.1.2.3"), server=True)
    client = context(tmp_path, ours, issued(ours, "10.1.2.4"), server=False)
    assert handshake(client, server, "10.1.2.3") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"10\.1\.2\.9"):
        handshake(client, server, "10.1.2.9")
    foreign = FleetAuthority(b"6" * 64, "ray")
    stranger = context(tmp_path, ours, issued(foreign, "10.1.2.4"), server=False)
    with pytest.raises(ssl.SSLError):
        handshake(stranger, server, "10.1.2.3")
