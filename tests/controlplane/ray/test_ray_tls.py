"""The certificate of a node's Ray, made with Ray's token."""

import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sparkfleet.controlplane.ray.ray_process import ray_environment
from sparkfleet.controlplane.ray.ray_tls import move_in, prepare_tls, term_in, tls_environment
from sparkfleet.runtime.authority import FleetAuthority
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    found = FleetPaths(tmp_path / "state")
    found.root.mkdir()
    found.ray_token.write_text("a" * 64)
    return found


def test_ray_gets_a_certificate_that_every_node_with_the_token_accepts(paths):
    assert tls_environment(paths) == {}
    prepare_tls(paths, "10.1.2.3")
    env = ray_environment(paths, {})
    assert env["RAY_USE_TLS"] == "1"
    files = [paths.ray_tls / name for name in ("certificate.pem", "key.pem", "authority.pem")]
    assert [env[f"RAY_TLS_{name}"] for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")] == [*map(str, files)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    elsewhere = FleetAuthority(b"a" * 64, "ray")
    assert files[2].read_bytes() == elsewhere.pem()
    assert elsewhere.has_issued(x509.load_pem_x509_certificate(files[0].read_bytes()))


def test_a_name_is_valid_with_its_addresses(paths):
    prepare_tls(paths, "localhost")
    found = x509.load_pem_x509_certificate((paths.ray_tls / "certificate.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    prepare_tls(paths, "no-such-host.invalid")  # a name that this node cannot resolve is one that others may
    found = x509.load_pem_x509_certificate((paths.ray_tls / "certificate.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "no-such-host.invalid" in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("term", [None, 0, 12])
def test_the_certificate_of_a_head_has_its_term(paths, term):
    prepare_tls(paths, "10.1.2.3", term)
    found = x509.load_pem_x509_certificate((paths.ray_tls / "certificate.pem").read_bytes())
    assert term_in(found.public_bytes(Encoding.DER)) == term


@pytest.mark.parametrize("move", ["", "0123456789abcdef"])
def test_the_certificate_of_a_head_that_a_move_has_started_names_the_move(paths, move):
    prepare_tls(paths, "10.1.2.3", 12, move)
    shown = x509.load_pem_x509_certificate((paths.ray_tls / "certificate.pem").read_bytes())
    assert move_in(shown.public_bytes(Encoding.DER)) == move
    assert term_in(shown.public_bytes(Encoding.DER)) == 12, "earlier releases read it, too"


def test_each_start_has_a_new_key(paths):
    prepare_tls(paths, "10.1.2.3")
    before = (paths.ray_tls / "key.pem").read_bytes()
    prepare_tls(paths, "10.1.2.3")
    assert (paths.ray_tls / "key.pem").read_bytes() != before


def test_a_certificate_is_valid_whatever_the_clock_of_its_node(paths):
    """A node that was off for months starts with an old time and corrects it later; the other way round it had expired."""
    prepare_tls(paths, "10.1.2.3")
    found = x509.load_pem_x509_certificate((paths.ray_tls / "certificate.pem").read_bytes())
    assert found.not_valid_before_utc.year == 2000
    assert found.not_valid_after_utc.year == 2055


def test_before_it_is_made_ray_has_no_settings_of_others(paths):
    assert "RAY_USE_TLS" not in ray_environment(paths, {"RAY_USE_TLS": "1"})
