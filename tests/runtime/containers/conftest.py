"""Fixtures of ranks in containers, with a container tool whose daemon is the test."""

from container_daemon import daemon, in_container, runtime, tool

__all__ = ["daemon", "in_container", "runtime", "tool"]
