"""Base of fakes of the controller's client, and of the session that opens it."""

from typing import Self


class OpenClient:
    """An opened client of the controller, and the session with it; a fake adds the answers."""

    async def controller(self) -> Self:
        """The client."""
        return self

    def again(self) -> Self:
        """The same client."""
        return self

    async def __aenter__(self) -> Self:
        """It is open already."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """It stays open."""

    async def aclose(self) -> None:
        """It stays open."""
