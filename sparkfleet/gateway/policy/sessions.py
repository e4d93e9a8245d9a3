"""The group that served a session last, by the name that its client sends in a header."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

HEADERS = (
    b"x-session-id",  # vLLM's production stack; OpenCode, packages/opencode/src/session/llm/request.ts
    b"x-smg-routing-key",  # SGLang's gateway
    b"x-claude-code-session-id",  # https://code.claude.com/docs/en/llm-gateway-protocol
    b"session-id",  # Codex since 0.131, https://github.com/openai/codex/pull/22193
    b"session_id",  # Codex before, https://github.com/openai/codex/pull/21757
)
"""Headers with a session's name."""
AGENT_HEADERS = (
    b"x-claude-code-agent-id",  # of a subagent only, https://github.com/anthropics/claude-code/issues/49204
    b"thread-id",  # Codex, as above
    b"thread_id",
)
"""Headers with the name of an agent in a session: its prompts do not continue those of the others."""
MOST = 10_000
"""Sessions that are remembered."""


class SessionPlace(NamedTuple):
    """The place of a session's last request."""

    app: str
    tokens: int
    """Tokens of its prompt, which its next one probably begins with."""


class Sessions:
    """Remembers where sessions were served last, the most recent `MOST` of them."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, SessionPlace] = OrderedDict()

    def place(self, session: str) -> SessionPlace | None:
        """The last place; None if that is not known, or it has no name."""
        return self._places.get(session) if session else None

    def note(self, session: str, app: str, prompt_tokens: int) -> None:
        """Records a request of a session that is sent to a group."""
        if not session:
            return
        self._places.pop(session, None)
        self._places[session] = SessionPlace(app, prompt_tokens)
        if len(self._places) > MOST:
            self._places.popitem(last=False)

    def forget(self, app: str) -> None:
        """Records that a group's engine was lost, with its cache."""
        self._places = OrderedDict((name, at) for name, at in self._places.items() if at.app != app)

    def keep(self, apps: Iterable[str]) -> None:
        """Forgets sessions on all other groups."""
        there = frozenset(apps)
        self._places = OrderedDict((name, at) for name, at in self._places.items() if at.app in there)
