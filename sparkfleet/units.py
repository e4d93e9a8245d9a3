"""Sizes in bytes: binary units, as memory is counted, and the decimal one of disks and weights."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9
