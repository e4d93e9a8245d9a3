"""Every listening socket of a node asked without a token, over HTTP, gRPC, TLS without a certificate, and plain TCP, by a
program that runs on nodes."""

import json
from typing import NamedTuple

from socket_answers import OVER_TLS, PROBES, Kind, judge

from sparkfleet.hostfacts.network.listening_sockets import ReadSockets

PATHS = (
    *(
        "/",
        "/health",
        "/healthz",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/version",
        "/ping",
        "/load",
        "/v1/models",
    ),
    *(
        "/server_info",
        "/get_server_info",
        "/get_model_info",
        "/model_info",
        "/health_generate",
        "/prometheus/metrics",
    ),
    *(
        "/v1/fleet",
        "/api/fleet",
        "/api/requests",
        "/targets",
        "/api/version",
        "/api/jobs/",
        "/api/cluster_status",
        "/api/local_raylet_healthz",
        "/logs",
    ),
    *(
        "/nodes?view=summary",
        "/api/serve/applications/",
        "/-/routes",
        "/-/healthz",
        "/events",
        "/log",
        "/stats",
    ),
)
POSTS = (
    "/invocations",
    "/tokenize",
    "/generate",
    "/v1/completions",
    "/scale_elastic_ep",
    "/generative_scoring",
    "/pause",
)
BODY = json.dumps({"model": "tiny", "prompt": "A rail is", "text": "A rail is", "max_tokens": 3})

ASK = r"""
import asyncio, json, ssl, sys
told = json.load(sys.stdin)
anybody = ssl.create_default_context()
anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
anybody.set_alpn_protocols(["h2"])

async def ask(address, port, sends):
    over_tls = sends.startswith(told["over_tls"])
    sends = sends.removeprefix(told["over_tls"])
    try:
        opening = asyncio.open_connection(address, port, ssl=anybody if over_tls else None)
        reader, writer = await asyncio.wait_for(opening, 3)
    except (OSError, asyncio.TimeoutError) as error:
        return None
    got = b""
    try:
        writer.write(sends.encode("latin-1"))
        while len(got) < 4000 and (more := await asyncio.wait_for(reader.read(4000), told["wait_s"])):
            got += more
    except (OSError, asyncio.TimeoutError):
        pass
    if over_tls and not got:
        got = (told["over_tls"] + writer.get_extra_info("ssl_object").version()).encode()
    writer.close()
    return got.decode("latin-1")

async def main():
    gate = asyncio.Semaphore(40)
    async def one(address, port, line):
        async with gate:
            return [address, port, line, await ask(address, port, line)]
    print(json.dumps(await asyncio.gather(*(one(*target, line) for target in told["targets"] for line in told["lines"]))))

asyncio.run(main())
"""


class Answer(NamedTuple):
    """Result of one request without a token."""

    node: str
    process: str
    address: str
    port: int
    request: str
    asked_from: str
    text: str

    @property
    def status(self):
        """Of an HTTP answer; 0 for anything else."""
        words = self.text.split(" ", 2)
        return int(words[1]) if words[0].startswith("HTTP/1") and len(words) > 1 and words[1].isdigit() else 0

    @property
    def is_data(self):
        """True if it gave data away: what no rule of `judge` knows as a refusal or a greeting."""
        return self.verdict.kind is Kind.DATA

    @property
    def verdict(self):
        """Kind and protocol of the answer."""
        return judge(self.text.encode("latin-1"))


def requests():
    """Requests by their names, as they go over the wire."""
    for path in PATHS:
        yield f"GET {path}", f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for path in POSTS:
        head = (
            f"Host: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}"
        )
        yield f"POST {path}", f"POST {path} HTTP/1.1\r\n{head}\r\n\r\n{BODY}"
    head = "Host: x\r\nOrigin: http://x\r\nConnection: close"
    yield "OPTIONS /v1/models", f"OPTIONS /v1/models HTTP/1.1\r\n{head}\r\n\r\n"
    yield from ((name, probe.decode("latin-1")) for name, probe in PROBES.items())


def sockets(lab, node):
    """The listening sockets of a node, with the processes that have them."""
    return ReadSockets.parse(lab.exec(node, list(ReadSockets.argv), root=True).stdout)


def scan(lab, node, asking, addresses):
    """Ask every socket of `node` from the node `asking`.

    Args:
        lab: the simulated Sparks.
        node: whose sockets.
        asking: the node that asks; the same one for loopback.
        addresses: of `node`, for sockets that listen on every address.
    """
    found = [one for one in sockets(lab, node) if one.port != 22 and (not one.local or asking == node)]
    names = {one.port: one.process for one in found}
    targets = sorted(
        {(address, one.port) for one in found for address in (addresses if one.anywhere else (one.address,))}
    )
    named = {line: name for name, line in requests()}
    told = {"targets": targets, "lines": list(named), "over_tls": OVER_TLS.decode(), "wait_s": 2}
    done = lab.exec(asking, ["python3", "-I", "-c", ASK], stdin=json.dumps(told), timeout_s=600)
    assert done.returncode == 0, done.stderr
    return [
        Answer(node, names[port], address, port, named[line], asking, text or "")
        for address, port, line, text in json.loads(done.stdout)
    ]
