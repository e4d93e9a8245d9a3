"""Secrets do not appear in a report; everything that its reader needs stays."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fleet.bundle.redact import Redactor

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inet 192.168.100.10/24 brd 192.168.100.255", "inet <subnet-1>.10/24 brd <subnet-1>.255"),
        ("127.0.0.1:8000 0.0.0.0 255.255.255.0", "127.0.0.1:8000 0.0.0.0 255.255.255.0"),
        ("link/ether 4c:bb:47:00:11:22", "link/ether <mac-1>"),
        (
            "fe80::4ebb:47ff:fe00:1122/64 on fe80:0:0:0:4ebb:47ff:fe00:1122",
            "fe80::<ipv6-1>/64 on fe80::<ipv6-1>",
        ),
        ("2001:db8::7 fd00::1", "<ipv6-1> <ipv6-2>"),
        (
            "0000:0000:0000:0000:0000:ffff:c0a8:640a ::ffff:192.168.100.11",
            "::ffff:<subnet-1>.10 ::ffff:<subnet-1>.11",
        ),
        ("node_guid: 4cbb:4703:0016:0102", "node_guid: <guid-1>"),
        ("brd ff:ff:ff:ff:ff:ff lo 00:00:00:00:00:00", "brd ff:ff:ff:ff:ff:ff lo 00:00:00:00:00:00"),
        (f"/etc/machine-id:{'5a' * 16}", "/etc/machine-id:<machine-id-1>"),
        ("Device Serial Number 4c-bb-47-ff-ff-00-11-22", "Device Serial Number <serial-1>"),
        ("::1 12:01:33 0000:01:00.0 std::vector", "::1 12:01:33 0000:01:00.0 std::vector"),
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer <secret>"),
        ("key sk-sf-AqYMzujb25jUbnVhXHC52MriV", "key <secret>"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrst max_tokens=30", "HF_TOKEN=<secret> max_tokens=30"),
        ("password: 'hunter 2', next", "password: <secret>, next"),
        (f"{DIGEST} image@sha256:{DIGEST}", f"<secret> image@sha256:{DIGEST}"),
        ("sealed:1:AbC/d+e==", "<secret>"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\nx", "<secret>\nx"),
        ("SHA256:" + "A" * 43, "SHA256:<key-1>"),
        ("ssh-ed25519 " + "A" * 68, "ssh-ed25519 <key-1>"),
        ("Serial Number: 1324567890", "Serial Number: <serial-1>"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "<uuid-1>"),
        ("anna@example.com", "<mail-1>"),
        ("/home/anna/x /home/nvidia/x", "/home/<user-1>/x /home/nvidia/x"),
        ("/home/jürgen/x /home/anna@example/x", "/home/<user-1>/x /home/<user-2>/x"),
        ("/home/annas-spark.old/x /home/annas-spark/x", "/home/<user-1>/x /home/<node-1>/x"),
        ('{"home": "/home/j\\u00fcrgen/x"}', '{"home": "/home/<user-1>/x"}'),
        ("/srv/state/sparkfleet/home/role.json", "/srv/state/sparkfleet/home/role.json"),
        ("INFO prompt: 'tell me a secret'", "<line with a prompt>"),
        ('body {"messages": [{"role": "user"}]}', "<line with a prompt>"),
        ("prompt_tokens: 12, prompt throughput: 3.1", "prompt_tokens: 12, prompt throughput: 3.1"),
        (
            "annas-spark and Annas-Spark.local, this, sparkling",
            "<node-1> and <node-1>.local, this, sparkling",
        ),
        ("the other value", "the <secret> value"),
        (
            "running: vllm serve m --api-key a,b;c --port 8000",
            "running: vllm serve m --api-key <secret> --port 8000",
        ),
        ("server --password 'a b'\"'\"'c' -v", "server --password <secret> -v"),
        ("['serve', '--api-key', 'abc', '-v']", "['serve', '--api-key', <secret>, '-v']"),
        ('["--hf_token","abc","--port","8"]', '["--hf_token",<secret>,"--port","8"]'),
        (r"{\"argv\": [\"--token\", \"abc\"]}", r"{\"argv\": [\"--token\", <secret>]}"),
        ("command:\n  - --api-key\n  - abc\n  - -v", "command:\n  - --api-key\n  - <secret>\n  - -v"),
        ("args: {'api_key': ['a]b', 'c'], 'port': 8000}", "args: {'api_key': <secret>, 'port': 8000}"),
        ('"api_key": [\n  "abc"\n]', '"api_key": <secret>'),
        ("Namespace(api_key=['abc'], port=1)", "Namespace(api_key=<secret>, port=1)"),
        ("api_key=SecretStr('abc') token=b'abc'", "api_key=<secret>) token=<secret>"),
        ("redis://u:a:b!@cache:6379", "redis://u:<secret>@cache:6379"),
        (
            'SMTP_PASS=a DB_CREDENTIAL=b REGISTRY_AUTH=\'c d\' SECRET_KEY_BASE=e PRIVATE_KEY=f "WANDB_KEY": "g"',
            "SMTP_PASS=<secret> DB_CREDENTIAL=<secret> REGISTRY_AUTH=<secret> SECRET_KEY_BASE=<secret> PRIVATE_KEY=<secret>"
            ' "WANDB_KEY": <secret>',
        ),
        ("passphrase: abc, smtp_pass: x", "passphrase: <secret>, smtp_pass: <secret>"),
        (
            "TOKENIZERS_PARALLELISM=false VLLM_MAX_TOKENS=3 NCCL_DEBUG=INFO pass: 2 keys: 3",
            "TOKENIZERS_PARALLELISM=false VLLM_MAX_TOKENS=3 NCCL_DEBUG=INFO pass: 2 keys: 3",
        ),
        (
            "--max-tokens 30 --tokenizer x --api-key --port 8 --password-file /p the secret is out",
            "--max-tokens 30 --tokenizer x --api-key --port 8 --password-file /p the secret is out",
        ),
    ],
)
def test_a_text(text, expected):
    redactor = Redactor(["other"], {"node": ["annas-spark", "this"]})
    assert redactor.text(text) == expected


def test_the_same_is_the_same_everywhere_and_another_is_another():
    redactor = Redactor()
    assert redactor.text("10.0.0.1 10.0.0.2") == "<subnet-1>.1 <subnet-1>.2"
    assert redactor.text("10.0.1.1 10.0.0.3") == "<subnet-2>.1 <subnet-1>.3"
    assert redactor.counts["subnet"] == 4


def test_two_nodes_with_one_host_key_or_machine_id_can_be_recognised():
    one, other, redactor = "A" * 68, "B" * 68, Redactor()
    assert redactor.text(f"ssh-ed25519 {one}") == redactor.text(f"ssh-ed25519 {one}")
    assert redactor.text(f"ssh-ed25519 {other}") == "ssh-ed25519 <key-2>"
    assert redactor.text(f"machine-id:{'0' * 32} machine-id:{'1' * 32}").endswith("machine-id:<machine-id-2>")


def test_a_document_keeps_its_fields_and_loses_secret_ones():
    found = Redactor().document(
        {
            "spec": {"content": "prose", "max_tokens": 3, "text": "content: 'x'"},
            "api_token": "abc",
            "keys": [{"api_key": "x"}],
            "address": "10.0.0.7",
            "none": None,
        }
    )
    assert found == {
        "spec": {"content": "prose", "max_tokens": 3, "text": "<line with a prompt>"},
        "api_token": "<secret>",
        "keys": [{"api_key": "<secret>"}],
        "address": "<subnet-1>.7",
        "none": None,
    }


@given(st.text(alphabet=string.ascii_letters + string.digits + "_-", min_size=8), st.text(), st.text())
def test_a_known_secret_never_appears(secret, before, after):
    assert secret not in Redactor([secret]).text(f"{before} {secret} {after}").replace("<secret>", "")


@given(st.text(max_size=300))
def test_any_text_can_be_redacted_twice(text):
    redactor = Redactor()
    once = redactor.text(text)
    assert redactor.text(once) == once


def test_a_command_in_a_document_loses_the_values_of_secret_options():
    command = [
        "vllm",
        "serve",
        "--api-key",
        "abc",
        "--token=abc",
        "--port",
        "8",
        "--max-tokens",
        "9",
        "--password",
    ]
    found = Redactor().document({"command": command, "api_token": ["--port", "abc"], "mixed": [1, "x", None]})
    kept = ["vllm", "serve", "--api-key", "<secret>", "--token=<secret>", "--port", "8", "--max-tokens", "9"]
    assert found == {
        "command": [*kept, "--password"],
        "api_token": ["<secret>", "<secret>"],
        "mixed": [1, "x", None],
    }


@pytest.mark.parametrize(
    "name", ["SMTP_PASS", "DB_CREDENTIAL", "REGISTRY_AUTH", "PRIVATE_KEY", "SECRET_KEY_BASE"]
)
def test_each_name_whose_value_is_sealed_as_a_secret_is_replaced(name):
    redactor = Redactor()
    assert redactor.text(f"{name}=abc") == f"{name}=<secret>"
    assert redactor.document({name: "abc"}) == {name: "<secret>"}
    assert redactor.counts["secret"] == 2
