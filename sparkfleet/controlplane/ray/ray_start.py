"""Ray's command line without Ray Client: `python -m sparkfleet.controlplane.ray.ray_start start …`.

Ray starts a server for remote drivers on every head, which runs what its clients send, and has no switch for it (Ray
2.60.0: without a port it takes 10001, and 0 is refused). Only without the packages of Ray Client it is left out, and
`ray start` gets that answer here.
"""

from __future__ import annotations

from ray.scripts import scripts

_CHECK = "get_ray_client_dependency_error"


def without_ray_client() -> None:
    """Makes `ray start` leave out the server of Ray Client. Raises RuntimeError if this Ray decides in another way."""
    if not hasattr(scripts, _CHECK):
        raise RuntimeError(f"ray.scripts.scripts has no {_CHECK}: its Ray Client cannot be switched off.")
    setattr(scripts, _CHECK, lambda: ImportError("sparkfleet does not use Ray Client"))


if __name__ == "__main__":
    without_ray_client()
    scripts.main()
