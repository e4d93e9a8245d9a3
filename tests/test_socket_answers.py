"""The scanner's judgement of sockets: against real servers of each protocol, and bytes that no rule knows."""

import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import scanner
import zmq
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st
from scanner import Answer
from socket_answers import GRPC_PATHS, OVER_TLS, PROBES, Kind, grpc_call, judge

from sparkfleet.runtime.authority import FleetAuthority, names_of_this_host

CALL = GRPC_PATHS[-1]


def asked(port, *lines):
    """The answers of a local port to these lines, by the program that the scanner runs on nodes."""
    told = {
        "targets": [("127.0.0.1", port)],
        "lines": [line.decode("latin-1") for line in lines],
        "over_tls": OVER_TLS.decode(),
        "wait_s": 3,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", scanner.ASK],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=True,
    )
    return [judge((text or "").encode("latin-1")) for *_, text in json.loads(done.stdout)]


class Service(grpc.GenericRpcHandler):
    """Any method: refuses, or answers with a message."""

    def __init__(self, message):
        self.message = message

    def service(self, details):
        def answer(request, context):
            if self.message is None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return self.message

        return grpc.unary_unary_rpc_method_handler(answer)


@contextlib.contextmanager
def grpc_server(message, credentials=None):
    server = grpc.server(ThreadPoolExecutor(2), handlers=(Service(message),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_a_grpc_server_that_answers_gives_data_and_one_that_refuses_does_not():
    with grpc_server(b"numbers of the node") as port:
        (gives,) = asked(port, grpc_call(CALL))
    with grpc_server(None) as port:
        refuses, silent, line = asked(port, grpc_call(CALL), b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert gives.kind is Kind.DATA
    assert "message" in gives.words
    assert refuses == (Kind.REFUSED, "HTTP/2 without a message")
    assert {silent.kind, line.kind} <= {Kind.NOTHING, Kind.REFUSED}


def test_a_socket_of_zeromq_sends_its_greeting_and_nothing_else():
    context = zmq.Context()
    with context.socket(zmq.REP) as bound:
        port = bound.bind_to_random_port("tcp://127.0.0.1")
        verdicts = asked(port, *PROBES.values())
    context.term()
    assert {one.kind for one in verdicts} <= {Kind.NOTHING, Kind.GREETING}
    assert Kind.GREETING in {one.kind for one in verdicts}


@contextlib.contextmanager
def listener(answer, wrap=None):
    """A server that sends `answer(first bytes)`; b"" are asked for before anything is received."""
    with socket.create_server(("127.0.0.1", 0)) as bound:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    one, _ = bound.accept()
                    with one, contextlib.suppress(OSError):
                        if wrap is not None:
                            wrap(one)
                            continue
                        one.sendall(answer(b""))
                        one.settimeout(2)
                        one.sendall(answer(one.recv(4000)))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield bound.getsockname()[1]
        bound.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_bytes_that_come_before_anything_is_asked_are_data_unless_they_are_a_known_greeting():
    with listener(lambda got: b"" if got else b"\x80\x04\x95 a pickle") as port:
        assert {one.kind for one in asked(port, b"", b"\r\n")} == {Kind.DATA}
    with listener(lambda got: b"" if got else b"SSH-2.0-OpenSSH_9.6\r\n") as port:
        assert asked(port, b"") == [(Kind.GREETING, "SSH")]


@pytest.mark.parametrize(
    ("says", "kind"), [(b"-NOAUTH Authentication required.\r\n", Kind.REFUSED), (b"+PONG\r\n", Kind.DATA)]
)
def test_a_redis_that_obeys_without_a_password_gives_data(says, kind):
    with listener(lambda got: says if got else b"") as port:
        assert [one.kind for one in asked(port, PROBES["redis PING"])] == [kind]


def test_a_socket_that_requires_tls_refuses(tmp_path):
    made = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -days 1 -keyout k -out c"
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    with listener(None, lambda one: context.wrap_socket(one, server_side=True)) as port:
        (verdict,) = asked(port, PROBES["redis PING"] * 3)
    assert verdict.kind in {Kind.NOTHING, Kind.REFUSED}
    assert judge(bytes.fromhex("15030100020246")) == (Kind.REFUSED, "TLS: it requires a handshake")
    assert judge(bytes.fromhex("15030100020246") + b"more").kind is Kind.DATA


@pytest.mark.parametrize("asks_for_one", [False, True])
def test_a_grpc_server_behind_tls_is_asked_as_somebody_without_a_certificate(asks_for_one):
    authority = FleetAuthority(b"secret", "test")
    made = authority.issue("test", names_of_this_host(()), 1, [ExtendedKeyUsageOID.SERVER_AUTH])
    credentials = grpc.ssl_server_credentials(
        [(made.key, made.certificate)], authority.pem(), require_client_auth=asks_for_one
    )
    with grpc_server(b"numbers of the node", credentials) as port:
        plain, over_tls = asked(port, grpc_call(CALL), OVER_TLS + grpc_call(CALL))
    assert plain.kind in {Kind.NOTHING, Kind.REFUSED}
    if asks_for_one:
        assert over_tls == (Kind.REFUSED, "TLSv1.3: it requires a certificate, or another protocol")
    else:
        assert over_tls.kind is Kind.DATA


def test_an_http_server_refuses_what_is_no_request_and_gives_its_page():
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page, *others = asked(server.server_port, b"GET / HTTP/1.1\r\n\r\n", *PROBES.values())
        server.shutdown()
    assert page == (Kind.DATA, "HTTP 200")
    assert {one.kind for one in others} <= {Kind.NOTHING, Kind.REFUSED}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\nno", Kind.REFUSED),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Kind.REFUSED),
        (b"HTTP/1.1 206 Partial Content\r\n\r\nhalf", Kind.DATA),
        (bytes.fromhex("000000040000000000"), Kind.REFUSED),
        (bytes.fromhex("0000000400000000000000070000000000010a"), Kind.DATA),
        (bytes.fromhex("000000040000000000000005000000000001") + b"12345", Kind.DATA),
        (bytes.fromhex("000001000000000001") + b"x", Kind.DATA),
        (b"\xff\0\0\0\0\0\0\0\1\x7f", Kind.GREETING),
        (b"\xff\0\0\0\0\0\0\0\1\x7f" + bytes(60), Kind.DATA),
        (b"hello", Kind.DATA),
    ],
)
def test_the_kind_of_an_answer(answer, kind):
    assert judge(answer).kind is kind


@given(st.binary())
def test_any_bytes_have_a_verdict(answer):
    assert (judge(answer).kind is Kind.NOTHING) == (answer == b"")


def test_an_answer_that_no_rule_knows_is_data_of_the_scan():
    def answer(text):
        return Answer("spark1", "x", "10.0.0.1", 6379, "redis PING", "spark2", text)

    assert [answer(text).is_data for text in ("", "-ERR\r\n", "+PONG\r\n", "HTTP/1.1 200 OK\r\n\r\n")] == [
        False,
        False,
        True,
        True,
    ]
