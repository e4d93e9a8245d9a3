"""Thresholds of the checks. Every number has its unit in its name and its source beside it."""

from __future__ import annotations

from sparkfleet.units import GIB

RAIL_HEALTHY_GBIT = 85.0
"""ib_write_bw of one rail. Healthy ones give 92 to 112 Gb/s (NVIDIA's guide: 92.57 and 97.28; 98 at MTU 9000)."""
RAIL_DEGRADED_GBIT = 25.0
"""A ConnectX-7 that came up degraded gives 8 to 25 Gb/s (dgx-spark-playbooks PR 108); published cases are 13.2 to 13.4."""
RAIL_TCP_DEGRADED_GBIT = 14.0
"""TCP over a degraded rail gave 12 to 14 Gb/s, and 106 after an update of driver and firmware (J. Tervit,
"ASUS Ascent GX10 ConnectX-7 Interconnect", 2026-04-06)."""
RAIL_SPEED_MBIT = 200_000
"""Speed that a QSFP port of a Spark negotiates with a 200GBASE-CR4 cable."""
RAIL_PING_US = 1400.0
"""ping over a rail takes 0.4 to 1.4 ms; more does not come from the cable (sparkbase wiki, multinode)."""
RDMA_LATENCY_US = 10.0
"""ib_write_lat takes about 1.5 us on a healthy cable (sparkbase wiki); several times that has another cause."""
RAIL_MTU = 9000
"""All published measurements use jumbo frames: RoCE then has packets of 4096 bytes instead of 1024."""
RDMA_MTU = 4096
PCIE_LANES = 4
PCIE_GT_PER_S = 32.0
"""Each half of the ConnectX-7 is on Gen5 x4 (lspci LnkSta of healthy Sparks; dmesg: 126.028 Gb/s)."""
RAILS_IMBALANCE = 0.2
"""Both rails of a cable give equal speeds within a few per cent; a difference of a fifth is a fault."""

UNACCOUNTED_GB = 5.0
"""knowledge/rules/rules.yaml driver-retained-pool; an idle Spark has less than 2."""
LEFTOVER_GB = 1.0
"""A CUDA context alone takes a few hundred MB; desktops are not compute processes."""
AVAILABLE_GIB = 10.0
"""Careful operators leave 8 to 10 GiB to a headless host (knowledge/hardware.yaml, host_reserve_gb)."""
PAGE_CACHE_GIB = 24.0
"""Engines count the page cache as used when they start; above this a start by memory fraction 0.8 fails on a Spark."""
LARGE_BLOCKS_GIB = 6.25
"""200 blocks of 32 MiB, which FujitsuPolycom/sparkring (pull request 202) requires of a Spark before a load. A rebooted one
had 47 GiB in blocks of 16 MiB or more, two after seven days 0.4 and 0.1 GiB of 118 that were available (its issue 173)."""
PRESSURE_PERCENT = 10.0
"""PSI full avg10. Chosen here."""

WEDGED_UTIL_PERCENT = 90.0
WEDGED_POWER_W = 18.0
WEDGED_CLOCK_MHZ = 900.0
"""knowledge/rules/rules.yaml power-wedge: busy, below 18 W and 900 MHz; a busy Spark has 35 to 90 W and 2350 to 2450 MHz."""
HOT_GPU_C = 85.0
"""68 to 79 °C in soaks, unthrottled (rhattala/dgx-spark-bench, 0xBakeer/inference-atlas)."""
HOT_ZONE_C = 95.0
"""96 to 97 °C is the fan curve of the EC firmware 0x0300 (knowledge/rules/rules.yaml ec-fan-regression). At 104.8 °C the
machine powers off (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark, pull request 74) without a line in a log (issue 146)."""

ENDED_S = 7 * 86_400
"""Time for which an end without a shutdown is reported. Chosen here."""
CLOCK_SKEW_S = 1.0
"""TLS and tokens begin to fail somewhere above. Chosen here."""
DISK_HEADROOM = 1.1
"""Free space needed for the weights: 10 % more than their size. Chosen here."""
DISK_LOW_GB = 20.0
"""A container image of an engine is 10 to 20 GB."""
LOCKED_BYTES = 4 * GIB
"""Memory that RDMA may pin. systemd gives a login an eighth of the memory, 15 GiB on a Spark; UCX asks for 0.5 GiB (its PR
8085); NCCL pins some MB for each channel and peer. Chosen here."""
OPEN_FILES = 65_536
"""Ray's own recommendation for raylets is 65,536 file descriptors."""
SWAPPINESS = 10
"""knowledge/rules/rules.yaml swap-thrash."""
SHARED_MEMORY_GB = 64.0
"""knowledge/rules/rules.yaml shm-64g: taken from the same unified memory."""
