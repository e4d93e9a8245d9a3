"""RDMA devices of a node: on a Spark, two RoCE devices for every QSFP port."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Literal

from sparkfleet.hostfacts.fact import Fact, unexpected_output
from sparkfleet.values import Value

_NAME = r"[A-Za-z0-9._-]{1,64}"


class RdmaLink(Value):
    """One port of an RDMA device, and the netdev of the same cable."""

    device: str
    port: int
    netdev: str = ""
    """"" if the kernel knows of none."""
    active: bool
    state: str = ""
    """As printed: ACTIVE, DOWN, INIT; Up or Down from `ibdev2netdev`."""


class ReadRdmaLinks(Fact[tuple[RdmaLink, ...]]):
    """`rdma link` of iproute2: every RDMA port with its netdev, in no particular order."""

    argv = ("rdma", "link")

    @staticmethod
    def parse(output: str) -> tuple[RdmaLink, ...]:
        """The rows, in order of device; empty output is a machine without RDMA. Raises FactError for other text."""
        rows = _rows(
            rf"link ({_NAME})/([0-9]{{1,3}}) (?:subnet_prefix \S+ )?(?:lid \S+ .*?)?state (\w+)"
            rf"(?: physical_state \w+)?(?: netdev ({_NAME}))?.*",
            output,
            "RDMA links",
        )
        return _sorted(
            RdmaLink(
                device=row[1],
                port=int(row[2]),
                netdev=row[4] or "",
                active=row[3] == "ACTIVE",
                state=row[3],
            )
            for row in rows
        )


class ReadIbdev2netdev(Fact[tuple[RdmaLink, ...]]):
    """`ibdev2netdev`: the same from NVIDIA's scripts, for systems without `rdma`. It may be missing, too."""

    argv = ("ibdev2netdev",)

    @staticmethod
    def parse(output: str) -> tuple[RdmaLink, ...]:
        """The rows, in order of device; empty output is a machine without RDMA. Raises FactError for other text."""
        form = rf"({_NAME}) port ([0-9]{{1,3}}) ==> ({_NAME}) \((Up|Down)\)"
        return _sorted(
            RdmaLink(device=row[1], port=int(row[2]), netdev=row[3], active=row[4] == "Up", state=row[4])
            for row in _rows(form, output, "RDMA devices")
        )


class RdmaDevice(Value):
    """One RDMA device with its (first) port."""

    name: str
    part: int
    """4129 is a ConnectX-7."""
    state: str
    """PORT_ACTIVE, PORT_DOWN, PORT_INIT, PORT_ARMED."""
    active_mtu: int
    """Bytes: 4096 needs a netdev MTU above it, such as 9000; 1500 gives 1024."""

    @property
    def active(self) -> bool:
        """True if the port carries traffic."""
        return self.state == "PORT_ACTIVE"


class ReadRdmaDevices(Fact[tuple[RdmaDevice, ...]]):
    """`ibv_devinfo`: model, state and active MTU of every RDMA device."""

    argv = ("ibv_devinfo",)

    @staticmethod
    def parse(output: str) -> tuple[RdmaDevice, ...]:
        """The blocks, in order of device; "No IB devices found" is none. Raises FactError for other text."""
        if not output.strip() or "No IB devices found" in output:
            return ()
        blocks = re.split(r"^hca_id:", output, flags=re.MULTILINE)[1:]
        if not blocks:
            raise unexpected_output("RDMA devices", output)
        return tuple(sorted(map(_device, blocks), key=lambda device: device.name))


def _device(block: str) -> RdmaDevice:
    first, _, rest = block.partition("\n")
    pairs = (line.partition(":") for line in rest.splitlines())
    found: dict[str, str] = {}
    for key, colon, value in pairs:
        if colon and (words := value.split()):
            found.setdefault(key.strip(), words[0])  # of several ports the first
    try:
        return RdmaDevice(
            name=_whole(_NAME, first.strip()),
            part=_number(found["vendor_part_id"]),
            state=_whole(r"PORT_[A-Z_]{1,24}", found["state"]),
            active_mtu=_number(found["active_mtu"]),
        )
    except (KeyError, ValueError):
        raise unexpected_output("RDMA devices", block) from None


class Gid(Value):
    """One entry of a port's GID table: an address that RoCE can use. NCCL needs the v2 entry of an IPv4 address."""

    device: str
    port: int
    index: int
    gid: str
    """In IPv6's short form; `::ffff:192.168.100.10` for an IPv4 address."""
    version: Literal[1, 2]
    """Version of RoCE."""
    netdev: str

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address in it, if it is one."""
        mapped = IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped else None


class ReadGids(Fact[tuple[Gid, ...]]):
    """`show_gids`. If it is missing, `ReadGidsOfKernel` reads the same."""

    argv = ("show_gids",)

    @staticmethod
    def parse(output: str) -> tuple[Gid, ...]:
        """The rows. Raises FactError for text that is no such table."""
        if not re.search(r"^DEV\s+PORT\s+INDEX\s+GID", output, re.MULTILINE):
            raise unexpected_output("GIDs", output)
        form = rf"({_NAME})\s+([0-9]{{1,3}})\s+([0-9]{{1,4}})\s+([0-9a-f:]{{2,39}})\s+(?:([0-9.]+)\s+)?v([12])\s+({_NAME})"
        found = [re.fullmatch(form, line.strip()) for line in output.splitlines()]
        return tuple(gid for row in found if row and (gid := _gid(row)))


class ReadGidsOfKernel(Fact[tuple[Gid, ...]]):
    """The GID tables from sysfs, in the columns of `show_gids`."""

    argv = (
        "python3",
        "-I",
        "-c",
        "import glob,os\n"
        "def read(path):\n"
        "    try: return open(path).read().strip()\n"
        "    except OSError: return ''\n"
        "print('DEV PORT INDEX GID IPv4 VER DEV')\n"
        "for path in sorted(glob.glob('/sys/class/infiniband/*/ports/*/gids/*')):\n"
        "    port,index=os.path.dirname(os.path.dirname(path)),os.path.basename(path)\n"
        "    gid,kind,net=read(path),read(port+'/gid_attrs/types/'+index),read(port+'/gid_attrs/ndevs/'+index)\n"
        "    if kind and net and gid.strip('0:'):\n"
        "        print(path.split('/')[4],path.split('/')[6],index,gid,'v2' if 'v2' in kind else 'v1',net)",
    )

    @staticmethod
    def parse(output: str) -> tuple[Gid, ...]:
        """The GIDs of the rows, which have the form of `show_gids`."""
        return ReadGids.parse(output)


def _gid(row: re.Match[str]) -> Gid | None:
    try:
        gid = IPv6Address(row[4])
        if row[5]:
            IPv4Address(row[5])
    except ValueError:  # a published table in which the address was made unreadable
        return None
    mapped = gid.ipv4_mapped
    return Gid(
        device=row[1],
        port=int(row[2]),
        index=int(row[3]),
        gid=f"::ffff:{mapped}" if mapped else str(gid),
        version=2 if row[6] == "2" else 1,
        netdev=row[7],
    )


class RdmaCounters(Value):
    """Byte counters of one RDMA port. The kernel's netdev counters do not include them."""

    tx_bytes: int
    rx_bytes: int
    others: dict[str, int]
    """Errors and retries by the driver's names: link_downed, symbol_error, out_of_sequence, …"""


class ReadRdmaCounters:
    """Counters of one RDMA port, from sysfs."""

    fine = (0, 2)
    """`grep` exits with 2 if one of the files is missing: drivers differ."""

    NAMES = (
        "counters/port_xmit_data",
        "counters/port_rcv_data",
        "counters/symbol_error",
        "counters/link_downed",
        "counters/port_rcv_errors",
        "hw_counters/out_of_sequence",
        "hw_counters/packet_seq_err",
        "hw_counters/local_ack_timeout_err",
        "hw_counters/rnr_nak_retry_err",
        "hw_counters/roce_adp_retrans",
    )

    def __init__(self, device: str) -> None:
        base = f"/sys/class/infiniband/{device}/ports/1"
        self.argv = ("grep", "-sH", ".", *(f"{base}/{name}" for name in self.NAMES))

    @staticmethod
    def parse(output: str) -> RdmaCounters:
        """`path:value` lines; counters that a driver lacks are left out. Raises FactError without the byte counters."""
        rows = re.findall(r"/(?:hw_)?counters/([a-z_]{1,64}):([0-9]{1,20})$", output, re.MULTILINE)
        found = {name: int(value) for name, value in rows}
        try:
            # InfiniBand counts in words of four bytes.
            sent, received = found.pop("port_xmit_data") * 4, found.pop("port_rcv_data") * 4
        except KeyError:
            raise unexpected_output("RDMA counters", output) from None
        return RdmaCounters(tx_bytes=sent, rx_bytes=received, others=found)


def _rows(form: str, output: str, what: str) -> list[re.Match[str]]:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = [row for line in lines if (row := re.fullmatch(form, line))]
    if lines and not found:
        raise unexpected_output(what, output)
    return found


def _sorted(links: Iterable[RdmaLink]) -> tuple[RdmaLink, ...]:
    return tuple(sorted(links, key=lambda link: (link.device, link.port)))


def _whole(form: str, text: str) -> str:
    if not re.fullmatch(form, text):
        raise ValueError(text)
    return text


def _number(text: str) -> int:
    return int(_whole(r"[0-9]{1,9}", text))
