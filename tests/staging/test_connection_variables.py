"""Environment variables with which no HTTP client can be made: the error names the variable and its value."""

import os
import subprocess
import sys

import pytest

from sparkfleet.errors import FactError
from sparkfleet.fleet.planning.checkpoints import find_checkpoint
from sparkfleet.staging.connection_variables import check_connection_variables, without_credentials
from sparkfleet.staging.errors import ConnectionVariableError

WRONG = {
    "a port of a Hub": ("HF_ENDPOINT", "http://x:99999", "http://x:99999"),
    "an address of a Hub": ("HF_ENDPOINT", "http://[x", "http://[x"),
    "a scheme of a proxy": ("HTTPS_PROXY", "ftp://user:secret@x", "ftp://x"),
    "an address of a proxy": ("https_proxy", "http://user:secret@[x", "http://[x"),
    "a file of certificates": ("SSL_CERT_FILE", "/nonexist", "/nonexist"),
    "a file without certificates": ("SSL_CERT_FILE", os.__file__, os.__file__),
    "a directory of certificates": ("SSL_CERT_DIR", "/nonexist", "/nonexist"),
}


@pytest.mark.parametrize(("variable", "value", "named"), WRONG.values(), ids=WRONG)
def test_the_variable_and_its_value_without_credentials(variable, value, named):
    with pytest.raises(ConnectionVariableError) as caught:
        check_connection_variables({variable: value})
    assert caught.value.what.startswith(f"{variable} is '{named}")
    assert caught.value.do
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_socks_without_its_package(monkeypatch, scheme):
    value = f"{scheme}://user:secret@127.0.0.1:9"
    monkeypatch.setattr("sparkfleet.staging.connection_variables.find_spec", lambda _: None)
    with pytest.raises(ConnectionVariableError, match="socksio") as caught:
        check_connection_variables({"ALL_PROXY": value})
    assert "ALL_PROXY" in caught.value.what
    assert "httpx2[socks]" in caught.value.do
    assert "secret" not in str(caught.value)
    monkeypatch.setattr("sparkfleet.staging.connection_variables.find_spec", lambda _: object())
    check_connection_variables({"ALL_PROXY": value})


@pytest.mark.parametrize(
    "value", ["http://proxy:3128", "proxy:3128", "https://u:p@proxy", "http://[::1]:3128"]
)
def test_proxies_that_work(value):
    check_connection_variables(
        {"HTTPS_PROXY": value, "http_proxy": value, "HF_ENDPOINT": "https://hub:8443/a"}
    )


def test_an_address_for_a_message():
    assert without_credentials("http://a:b@c/d@e") == "'http://c/d@e'"
    assert without_credentials("a:b@c:1") == "'c:1'"


def test_a_proxy_of_gnome_does_not_refuse_a_known_model(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:1080/")
    assert "ALL_PROXY is 'socks://127.0.0.1:1080/'" in find_checkpoint("Qwen/Qwen3.6-27B-FP8").origin
    with pytest.raises(FactError, match=r"ALL_PROXY is 'socks://.*(?s:.*)socks5://HOST:PORT"):
        find_checkpoint("nobody/has-this-at-all")


PLAN = ("plan", "--sparks", "1", "Qwen/Qwen3.6-27B-FP8")
STATUS = ("knowledge", "status")


@pytest.mark.parametrize(
    ("verb", "variable"),
    [
        *(
            (verb, name)
            for verb in (PLAN, STATUS, ("inspect", "a/b"))
            for name in ("HF_ENDPOINT", "HTTPS_PROXY")
        ),
        (STATUS, "PIP_INDEX_URL"),
    ],
)
def test_verbs_end_with_the_error(tmp_path, verb, variable):
    """In a process of its own: huggingface_hub reads HF_ENDPOINT once, when it is imported.

    A plan of a known model needs no network: the error is the reason why its sizes are estimates.
    """
    hub = {} if variable == "HF_ENDPOINT" else {"HF_ENDPOINT": "http://127.0.0.1:9"}
    kept = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    run = subprocess.run(
        [sys.executable, "-m", "sparkfleet", *verb],
        env={**kept, **hub, variable: "http://[x", "HOME": str(tmp_path), "PYTHONPATH": os.getcwd()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in run.stderr
    assert f"{variable} is 'http://[x" in " ".join(run.stdout.split()) + run.stderr
    assert run.returncode == (2 if verb == PLAN else 0 if variable == "PIP_INDEX_URL" else 1)


@pytest.mark.parametrize(
    "environment",
    [
        {"NO_PROXY": "*", "ALL_PROXY": "foo://x"},
        {"no_proxy": "localhost, *", "https_proxy": "foo://x"},
        {"https_proxy": "", "HTTPS_PROXY": "foo://x"},
    ],
)
def test_a_proxy_that_no_client_uses_is_no_error(environment):
    check_connection_variables(environment)
    with pytest.raises(ConnectionVariableError):
        check_connection_variables(environment | {"no_proxy": "localhost", "all_proxy": "foo://x"})
