import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.fabric.perftest import bandwidth_argv, latency_argv, parse_bandwidth, parse_latency

# One half of a Spark's cable at MTU 1500, from NVIDIA's performance guide.
BANDWIDTH = """                    RDMA_Write BW Test
 Dual-port       : OFF            Device         : rocep1s0f0
 Mtu             : 1024[B]
 GID index       : 3
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]    MsgRate[Mpps]
 65536      882805           0.00               92.57                0.176554
---------------------------------------------------------------------------------------
"""
# A public log of another machine's; a Spark's own is not published in full.
LATENCY = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.
 2       1000          1.76           6.12         1.79                1.80             0.06            1.88                    6.12
"""  # noqa: E501


def test_bandwidth_is_in_bytes():
    assert parse_bandwidth(BANDWIDTH) == pytest.approx(92.57 / 8)


def test_perftest_counts_megabytes_in_powers_of_two():
    assert parse_bandwidth(BANDWIDTH.replace("[Gb/sec]", "[MB/sec]")) == pytest.approx(
        92.57 * (1 << 20) / 1e9
    )


def test_latency_is_the_typical_one():
    assert parse_latency(LATENCY) == 1.79


def test_commands():
    assert bandwidth_argv("rocep1s0f1", 12000, 2.6, 3, "192.168.100.11") == (
        "ib_write_bw", "-d", "rocep1s0f1", "-i", "1", "-p", "12000", "-F", "--report_gbits",
        "-q", "4", "-D", "3", "-x", "3", "192.168.100.11",
    )  # fmt: skip
    assert latency_argv("rocep1s0f1", 12000, 2000, None)[-2:] == ("-n", "2000")


pieces = st.sampled_from(
    [line + "\n" for line in (BANDWIDTH + LATENCY).splitlines()] + [" 2 1 ٣ 4 5\n", "9" * 40]
)


@given(st.text() | st.lists(pieces | st.text(max_size=9), max_size=12).map("".join))
def test_any_text_is_a_number_or_a_fact_error(output):
    for parse in (parse_bandwidth, parse_latency):
        with contextlib.suppress(FactError):
            assert parse(output) >= 0
