"""Containers of `observe up`: pinned, as the fleet's user, on loopback, without a secret in an argument."""

import re

import pytest

from sparkfleet.telemetry.observe_containers import (
    PARTS,
    ObserveHost,
    ObserveImages,
    ObservePorts,
    container_argv,
)

HOST = ObserveHost(
    tool="docker", fleet="home", uid=1000, gid=1001, root="/home/me/.local/state/sparkfleet/home"
)


def argv(part, on=HOST, **ports):
    return container_argv(part, on, ObservePorts(**ports), ObserveImages())


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_pinned_by_digest(part):
    assert re.fullmatch(r"docker\.io/[a-z/]+:v?[\d.]+@sha256:[0-9a-f]{64}", getattr(ObserveImages(), part))
    assert getattr(ObserveImages(), part) in argv(part)


@pytest.mark.parametrize("part", PARTS)
def test_a_container_has_no_more_rights_than_it_needs(part):
    words = " ".join(argv(part))
    for option in ("--user 1000:1001", "--cap-drop ALL", "--security-opt no-new-privileges", "--read-only"):
        assert option in words
    volumes = [one for one, before in zip(argv(part)[1:], argv(part), strict=False) if before == "--volume"]
    writable = [one for one in volumes if not one.endswith(":ro")]
    assert writable == [one for one in volumes if f"/observe/data/{part}:" in one]


def test_rootless_podman_keeps_the_users_id():
    assert "--userns" in argv("grafana", HOST.model_copy(update={"tool": "podman"}))
    assert "--userns" not in argv("grafana", HOST.model_copy(update={"tool": "podman", "uid": 0}))
    assert "--userns" not in argv("grafana")


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.11"])
def test_only_grafana_may_leave_loopback(host):
    assert "--web.listen-address=127.0.0.1:9090" in argv("prometheus", host=host)
    assert "--web.listen-address=127.0.0.1:9093" in argv("alertmanager", host=host)
    assert "--cluster.listen-address=" in argv("alertmanager", host=host)
    assert f"GF_SERVER_HTTP_ADDR={host}" in argv("grafana", host=host)


def test_grafana_has_a_password_of_its_own_and_nobody_without_one():
    words = argv("grafana")
    assert "GF_SECURITY_ADMIN_PASSWORD__FILE=/etc/grafana/grafana.password" in words
    assert "GF_AUTH_ANONYMOUS_ENABLED=false" in words
    assert "GF_USERS_ALLOW_SIGN_UP=false" in words
