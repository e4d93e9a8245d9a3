"""Nodes that are this machine with storage of their own."""

from sparkfleet.remote.local import LocalChannel


class Apart(LocalChannel):
    """A node whose commands have further variables."""

    def __init__(self, node, own):
        super().__init__(node)
        self._own = own

    async def run(self, argv, *, env=None, **more):
        """See `Channel.run`."""
        return await super().run(argv, env={**self._own, **(env or {})}, **more)
