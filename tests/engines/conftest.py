import json
from pathlib import Path

import pytest

import sparkfleet
from sparkfleet.engines.base import RankContext, RankRail
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate, GroupShape

FLAGS = Path(sparkfleet.__file__).parent / "knowledge" / "engines" / "engine_flags"
RAILS = (
    ("enp1s0f1np1", "rocep1s0f1", "192.168.100.1"),
    ("enP2p1s0f1np1", "roceP2p1s0f1", "192.168.101.1"),
)


def _candidate(engine="vllm", *, nodes=1, tp=None, pp=1, ep=1, dcp=1, method="none", **fields):
    """A candidate; `speculation` by its parts (`method`, `tokens`, `draft` and the others of `Speculation`)."""
    parts = {name: fields.pop(name) for name in Speculation.model_fields if name in fields}
    names = tuple(f"spark{n + 1}" for n in range(nodes))
    fields = {"context": 4096, "concurrency": 4, "engine_version": "0.32.0", "model": "org/m", **fields}
    return Candidate(
        shape=GroupShape(nodes=names, tp=tp or nodes // pp, pp=pp, ep=ep, dcp=dcp),
        engine=engine,
        speculation=Speculation(method=method, **parts),
        **fields,
    )


def _context(rank=0, ranks=1, **fields):
    """The place of a rank: alone on loopback, or on the two rails of a pair."""
    fields = {
        "python": "/venv/bin/python", "model_path": "/models/m", "served_name": "m", "files_dir": "/state/r", **fields
    }  # fmt: skip
    if ranks == 1:
        return RankContext(**{"rank": 0, "host": "127.0.0.1", "port": 4321, **fields})
    ends = [
        tuple(RankRail(netdev=netdev, rdma=rdma, address=f"{net}{n}") for netdev, rdma, net in RAILS)
        for n in range(1, ranks + 1)
    ]
    peers = tuple(mine[0].address for mine in ends)
    known = {
        "rank": rank, "host": peers[rank], "port": 4321, "leader": peers[0], "leader_port": 29500,
        "rails": ends[rank], "peers": peers,
    }  # fmt: skip
    return RankContext(**{**known, **fields})


def _flags(argv):
    """Flag → value, "" if it has none; words before the first flag are left out."""
    found, name = {}, None
    for word in argv:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            assert name not in found, f"{name} twice"
            found[name] = value
        elif name is not None:
            found[name] = f"{found[name]} {word}".strip()
    return found


class Parser:
    """The options of one release of an engine, as its own parser had them."""

    def __init__(self, path):
        told = json.loads(path.read_text())
        self.engine, self.version = told["engine"], told["version"]
        self.options, self.plain = set(told["options"]), set(told["without_value"])
        self.choices = told["choices"]
        self.speculative_keys = set(told.get("speculative_keys", ()))
        self.speculative_methods = set(told.get("speculative_methods", ()))

    def complaints(self, argv):
        """Faults of a command line: unknown flags, values that are missing, too many or not among the choices."""
        for name, value in _flags(argv).items():
            if name not in self.options:
                yield f"{name} is unknown"
            elif (name in self.plain) != (value == ""):
                yield f"{name} {value}: value missing or too many"
            elif value and value not in self.choices.get(name, (value,)):
                yield f"{name} {value}: not among the choices"

    def speculation(self, argv):
        """Faults of vLLM's `--speculative-config`: keys and methods that the release does not have."""
        told = json.loads(_flags(argv).get("--speculative-config", "{}"))
        yield from (f"{key} is unknown" for key in told if key not in self.speculative_keys)
        if told and told["method"] not in self.speculative_methods:
            yield f"{told['method']} is no method"


PARSERS = {path.stem: Parser(path) for path in sorted(FLAGS.glob("*.json"))}


@pytest.fixture(params=PARSERS.values(), ids=PARSERS)
def parser(request):
    return request.param


@pytest.fixture
def candidate():
    return _candidate


@pytest.fixture
def context():
    return _context


@pytest.fixture
def flags():
    return _flags


@pytest.fixture
def parsers():
    """The releases of one engine."""
    return lambda engine: [parser for parser in PARSERS.values() if parser.engine == engine]
