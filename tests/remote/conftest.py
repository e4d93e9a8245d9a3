"""Fixtures that tests of `remote` share with other packages."""

from node_fixtures import ended, herald, proxied, serving, ssh, sshd

__all__ = ["ended", "herald", "proxied", "serving", "ssh", "sshd"]
