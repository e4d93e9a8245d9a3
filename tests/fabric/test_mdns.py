import asyncio
import socket
import struct
import threading
from contextlib import contextmanager, suppress

from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.fabric.mdns import Announced, announced, discover, question, records


def name(text):
    return b"".join(bytes([len(label)]) + label.encode() for label in text.split(".")) + b"\0"


def answer(host="spark-5c2d.local", address=(192, 168, 1, 11)):
    """Avahi's answer to a question for a service: the instance, and the host's address beside it."""
    service, instance = name("_ssh._tcp.local"), b"\x0aspark-5c2d\xc0\x0c"
    pointer = service + struct.pack("!2HIH", 12, 1, 10, len(instance)) + instance
    where = name(host) + struct.pack("!2HIH", 1, 1, 10, 4) + bytes(address)
    return struct.pack("!6H", 0, 0x8400, 0, 1, 0, 1) + pointer + where


@contextmanager
def responder(*packets):
    """Somebody on loopback who answers one question with `packets`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        asked = []

        def respond():
            with suppress(TimeoutError):
                data, where = sock.recvfrom(4096)
                asked.append(data)
                for packet in packets:
                    sock.sendto(packet, where)

        thread = threading.Thread(target=respond)
        thread.start()
        yield sock.getsockname(), asked
        thread.join()


async def test_a_spark_that_answers_is_found():
    with responder(answer(), b"\0" * 5, answer("printer.local"), answer()) as (where, asked):
        assert await discover(wait_s=1, group=where) == (Announced("spark-5c2d", "192.168.1.11"),)
    assert b"\x04_ssh\x04_tcp\x05local\0" in asked[0]


async def test_a_spark_with_a_cable_and_wifi_on_one_network_is_one_machine():
    packets = (answer(), answer(address=(192, 168, 1, 110)), answer("spark-bd26.local", (192, 168, 1, 12)))
    with responder(*packets) as (where, _):
        found = await discover(wait_s=1, group=where)
    assert [one.name for one in found] == ["spark-5c2d", "spark-bd26"]


async def test_machines_of_other_makers_have_other_names():
    """Host names as their owners' logs have them; `thinkstation` without a PGX is any workstation of Lenovo."""
    names = (
        "gx10-9641",
        "promaxgb10-41b1",
        "edgexpert-45d2",
        "zgx-5a09",
        "thinkstationpgx-2be0",
        "aitopatom-9ab9",
    )
    others = ("thinkstation-1", "nas")
    with responder(*(answer(f"{name}.local") for name in (*names, *others))) as (where, _):
        found = await discover(wait_s=1, group=where)
    assert [one.name for one in found] == sorted(names)


async def test_no_answer():
    with responder() as (where, _):
        assert await discover(wait_s=0.05, group=where) == ()


async def test_a_network_without_multicast_finds_none():
    assert await asyncio.wait_for(discover(wait_s=0.01, group=("255.255.255.255", 9)), 5) == ()


def test_answers_are_asked_for_by_unicast():
    packet = question(("_ssh._tcp.local",))
    assert struct.unpack("!6H", packet[:12]) == (0, 0, 1, 0, 0, 0)
    assert packet[-2:] == b"\x80\x01"


def test_compressed_names_are_followed():
    assert [record.value for record in records(answer())] == ["spark-5c2d._ssh._tcp.local", "192.168.1.11"]


def test_a_name_in_a_circle_ends():
    packet = struct.pack("!6H", 0, 0, 0, 1, 0, 0) + b"\xc0\x0c"
    assert list(announced(packet)) == []


@given(st.binary(max_size=300), st.integers(0, 200), st.binary(max_size=20))
def test_any_packet_is_an_answer_or_nothing(packet, at, piece):
    whole = answer()
    for one in (packet, whole[:at] + piece + whole[at:], whole[:12] + packet):
        assert all(isinstance(found, Announced) for found in announced(one))
