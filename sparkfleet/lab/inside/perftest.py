"""ib_write_bw, ib_write_lat, ib_send_bw, ib_send_lat: two nodes really connect, over TCP, and send data on the rail.

The reported rate and latency are not measured: they are the rail's settings at both ends; the healthy values are those of a
Spark's ConnectX-7. Data is sent at about 5 MB/s for as long as the real test would run.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass

from sparkfleet.lab.inside.netdevs import Hca, read_hcas
from sparkfleet.lab.inside.node_settings import NodeSettings

_LINE = "---------------------------------------------------------------------------------------"
_GBIT_PER_LANE = 28.0
"""A Gen5 lane's 31.5 Gb/s less PCIe's overhead: four give the 112 Gb/s that were measured on one half."""
_SMALL_MTU_GBIT = 92.57
"""One half at MTU 1500 (NVIDIA's performance guide for two Sparks)."""
_CHUNK = bytes(1 << 18)
_PATIENCE_S = 10.0


class NoPath(Exception):
    """The two ends cannot reach each other over the rail, or not by the given GID."""


@dataclass(frozen=True)
class End:
    """Message from one end to the other."""

    hca: str
    address: str
    port: int
    mtu: int
    gbit: float
    latency_us: float
    seconds: float


def bandwidth(argv: list[str], settings: NodeSettings) -> int:
    """Server without a host, client with one."""
    return _run(argv, settings, "BW")


def latency(argv: list[str], settings: NodeSettings) -> int:
    """The same, reporting microseconds."""
    return _run(argv, settings, "Latency")


def _run(argv: list[str], settings: NodeSettings, kind: str) -> int:
    asked = _arguments(argv)
    hcas = {hca.name: hca for hca in read_hcas(settings)}
    hca = hcas.get(asked.ib_dev) if asked.ib_dev else next((h for h in hcas.values() if h.active), None)
    if hca is None:
        print(
            f"IB device {asked.ib_dev or ''} not found\n Unable to find the Infiniband/RoCE device",
            file=sys.stderr,
        )
        return 1
    if not hca.active:
        print(" Port number 1 state is Down\n Couldn't set the link layer\n Couldn't get context for the device",
              file=sys.stderr)  # fmt: skip
        return 1
    try:
        meet = _serve if asked.host is None else _call
        mine, theirs, index = meet(asked, hca, settings)
    except (NoPath, OSError, ValueError) as error:
        print(
            f" Failed to modify QP 0x012c to RTR ({error})\n Unable to Connect the HCA's through the link",
            file=sys.stderr,
        )
        return 1
    _report(asked, kind, argv[0], (mine, theirs), index)
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=argv[0], allow_abbrev=False)
    parser.add_argument("-d", "--ib-dev")
    parser.add_argument("-i", "--ib-port", type=int, default=1)
    parser.add_argument("-p", "--port", type=int, default=18515)
    parser.add_argument("-D", "--duration", type=float)
    parser.add_argument("-n", "--iters", type=int, default=5000 if argv[0].endswith("bw") else 1000)
    parser.add_argument("-s", "--size", type=int, default=65536 if argv[0].endswith("bw") else 2)
    parser.add_argument("-x", "--gid-index", type=int)
    parser.add_argument("-q", "--qp", type=int, default=1)
    parser.add_argument("-m", "--mtu", type=int)
    for flag in ("-F", "--CPU-freq", "-a", "--all", "-b", "--bidirectional", "-R", "--rdma_cm"):
        parser.add_argument(flag, action="store_true", dest=f"ignored{flag}")
    parser.add_argument("--report_gbits", action="store_true")
    parser.add_argument("host", nargs="?")
    asked = parser.parse_args(argv[1:])
    if asked.size < 1 or asked.iters < 1 or not 0 < asked.port < 65536:
        parser.error("size, iterations and port must be positive")
    return asked


def _end(asked: argparse.Namespace, hca: Hca, settings: NodeSettings, port: int) -> tuple[End, int]:
    """This end, and its GID index. Raises NoPath if the device has no usable GID."""
    usable = {gid.index: gid for gid in hca.gids if gid.version == 2 and gid.ipv4}
    index = asked.gid_index if asked.gid_index is not None else next(iter(usable), None)
    if index not in usable:
        raise NoPath(f"GID index {index} of {hca.name} is no RoCE v2 IPv4 GID")
    netdev = hca.netdev.name
    limits = [
        settings.number("rdma_gbit", hca.name),
        _GBIT_PER_LANE * settings.number("pcie_width", hca.name),
    ]
    limits += [_SMALL_MTU_GBIT] if hca.active_mtu < 4096 else []
    limits += [settings.number("slow_gbit", netdev)] if settings.number("slow_gbit", netdev) else []
    delay = 1000 * settings.number("slow_ms", netdev)
    per_message = asked.size * 8 / (min(limits) * 1000)
    seconds = asked.duration or min(5.0, asked.iters * per_message / 1e6)
    far_end = End(
        hca.name,
        usable[index].ipv4,
        port,
        hca.active_mtu,
        min(limits),
        settings.number("rdma_us", hca.name) + delay,
        seconds,
    )
    return far_end, index


def _serve(asked: argparse.Namespace, hca: Hca, settings: NodeSettings) -> tuple[End, End, int]:
    print(
        "\n************************************\n* Waiting for client to connect... *\n************************************",
        flush=True,
    )
    with socket.create_server(("", asked.port), reuse_port=False) as listener:
        control, _ = listener.accept()
    with control, socket.socket() as rail:
        control.settimeout(_PATIENCE_S)
        rail.settimeout(_PATIENCE_S)
        rail.bind(("", 0))
        rail.listen(1)
        mine, index = _end(asked, hca, settings, rail.getsockname()[1])
        theirs = _exchange(control, mine)
        data, peer = rail.accept()
        with data:
            data.settimeout(_PATIENCE_S)
            while data.recv(1 << 20):
                pass
        if peer[0] != theirs.address:
            raise NoPath(f"data came from {peer[0]}")
    return mine, theirs, index


def _call(asked: argparse.Namespace, hca: Hca, settings: NodeSettings) -> tuple[End, End, int]:
    mine, index = _end(asked, hca, settings, 0)
    try:
        control = socket.create_connection((asked.host, asked.port), timeout=_PATIENCE_S)
    except OSError as error:
        print(f"Couldn't connect to {asked.host}:{asked.port}", file=sys.stderr)
        raise NoPath(error) from error
    with control:
        theirs = _exchange(control, mine)
        _send(hca.netdev.name, mine, theirs)
    return mine, theirs, index


def _exchange(control: socket.socket, mine: End) -> End:
    control.sendall(json.dumps(asdict(mine)).encode() + b"\n")
    with control.makefile("r") as lines:
        return End(**json.loads(lines.readline()))


def _send(netdev: str, mine: End, theirs: End) -> None:
    """Sends data from this rail's netdev to that of the other end, over no other netdev."""
    with socket.socket() as data:
        data.settimeout(_PATIENCE_S)
        data.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode())
        data.bind((mine.address, 0))
        data.connect((theirs.address, theirs.port))
        end = time.monotonic() + mine.seconds
        while True:
            data.sendall(_CHUNK)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.05, left))


def _report(asked: argparse.Namespace, kind: str, command: str, ends: tuple[End, End], index: int) -> None:
    mine, theirs = ends
    verb = "RDMA_Write" if "write" in command else "Send"
    print(f"{_LINE}\n                    {verb} {kind} Test")
    print(
        f" Dual-port       : OFF\t\tDevice         : {mine.hca}\n Number of qps   : {asked.qp}\t\tTransport type : IB"
    )
    print(" Connection type : RC\t\tUsing SRQ      : OFF\n PCIe relax order: ON\n ibv_wr* API     : ON")
    print(f" TX depth        : 128\n CQ Moderation   : 1\n Mtu             : {min(mine.mtu, theirs.mtu)}[B]")
    print(
        f" Link type       : Ethernet\n GID index       : {index}\n Max inline data : 0[B]\n rdma_cm QPs\t : OFF"
    )
    print(f" Data ex. method : Ethernet\n{_LINE}")
    print(_bandwidth_rows(asked, mine, theirs) if kind == "BW" else _latency_rows(asked, mine, theirs))
    print(_LINE)


def _bandwidth_rows(asked: argparse.Namespace, mine: End, theirs: End) -> str:
    gbit = min(mine.gbit, theirs.gbit)
    rate = gbit / (asked.size * 8 / 1000)
    count = int(rate * 1e6 * mine.seconds) if asked.duration else asked.iters
    unit, value = ("Gb/sec", gbit) if asked.report_gbits else ("MB/sec", gbit * 1e9 / 8 / (1 << 20))
    # With -D there is no peak: perftest prints 0.00.
    peak = 0.0 if asked.duration else value
    head = f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
    return f"{head}\n {asked.size:<10} {count:<15} {peak:<18.2f} {value:<18.2f} {rate:.6f}"


def _latency_rows(asked: argparse.Namespace, mine: End, theirs: End) -> str:
    typical = max(mine.latency_us, theirs.latency_us)
    if asked.duration:
        per_second = 1e6 / typical / 2
        count = int(per_second * mine.seconds)
        head = " #bytes        #iterations       t_avg[usec]    tps average"
        return f"{head}\n {asked.size:<13} {count:<17} {typical:<14.2f} {per_second:.2f}"
    head = (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
        "99% percentile[usec]   99.9% percentile[usec] "
    )
    low, high = typical * 0.97, typical * 2.4
    first = f" {asked.size:<6} {asked.iters:<14} {low:<14.2f} {high:<12.2f} {typical:<18.2f}"
    return (
        f"{head}\n{first} {typical * 1.01:<14.2f} {typical * 0.03:<15.2f} {typical * 1.1:<22.2f} {high:.2f}"
    )
