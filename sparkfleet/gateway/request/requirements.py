"""Requirements of a request, and the groups that meet them. Pure.

An unknown capability (None) excludes no group: the group only ranks behind those with a known one. A body is not
validated: parts of an unknown form have no requirements, and the engine reports their faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, get_args

from sparkfleet.gateway.request.media import may_name_media, media_urls, one_per_host
from sparkfleet.gateway.request.prefix_blocks import prefix_of
from sparkfleet.gateway.routing_table import GroupEntry

Ability = Literal["vision", "tools"]

_ABILITIES: tuple[Ability, ...] = get_args(Ability)

VISUAL = frozenset(
    {
        *("image", "image_embeds", "image_pil", "image_url", "input_image"),
        *("input_video", "video", "video_embeds", "video_url"),
    }
)
"""Types of parts: OpenAI's chat (`image_url`) and responses (`input_image`), Anthropic's (`image`), and further ones of vLLM
(0.32, `renderers/chat_utils.py`), which also accepts parts with such a field and no type."""
AUDIBLE = frozenset({"audio", "audio_embeds", "audio_url", "input_audio"})

_WITH_MEDIA = ("instructions", "system", "messages", "input")
"""Fields of the APIs with the input of a model, in the order in which engines put them together. The last one, `prompt`, has
texts and token ids only: it names no media."""
_COMPARED = frozenset(
    ("query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2", "data")
)
"""Fields of /v1/rerank, /v1/score, /v1/classify and /v1/pooling, whose texts may be parts with images, too."""
_INSIDE = ("content", "text", "output", "source")
"""Fields of messages, parts and tool results with input. Not the arguments of calls: they are the tool's own data. The
source of a document of Anthropic's API may have parts of its own."""
_COUNTED = frozenset(
    {"arguments", "function_call", "input", "reasoning", "reasoning_content", "thinking", "tool_calls"}
)
"""Further fields of messages and parts that chat templates may put into the prompt: calls of tools, and earlier thoughts. Of
these only the length is read."""
_SALTS = ("cache_salt", "extra_key")
"""Fields of vLLM and SGLang: a prompt with another value finds nothing in their caches (smg-project/smg#2420)."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_CHARACTERS_PER_TOKEN = 3
"""Characters per token: fewer than the four of plain English, so that code is overestimated rather than underestimated.
Each digit, and each character outside ASCII, counts as a token."""
_DIGITS = b"0123456789"
_IMAGE_TOKENS = 2_000
"""Tokens of an image or video whose size is not read: a screenshot of 1920 x 1080 has 2,025 if a token is one of 32 x 32
pixels (Qwen3-VL), and other families make a few hundred to four thousand of it."""
_MOST_CHARACTERS_PER_TOKEN = 12
"""Characters per token, at most, in a whole prompt: a group is certainly too small only by this. Outside ASCII 4."""
_MOST_PARTS = 20_000
"""Parts that are read: more than a conversation has; a body of 32 MB may have ten million."""


class Requirements(NamedTuple):
    """Requirements of one request."""

    vision: bool = False
    """It has images or video."""
    tools: bool = False
    """It has tools that the model may call."""
    audio: bool = False
    """It has sound. Support is not known of any weights: no group is refused for it, and those with vision come first."""
    tokens: int = 0
    """Estimated upper limit of prompt and answer, tokens, with tools, calls and images. It only orders the groups."""
    prompt_tokens: int = 0
    """The prompt's part of it."""
    least_tokens: int = 0
    """Estimated lower limit of the prompt: of its texts and token ids only."""
    characters: int = 0
    """Length of the prompt's texts."""
    prefix: tuple[int, ...] = ()
    """Names of the prompt's beginnings (`prefix_blocks`)."""
    media: tuple[str, ...] = ()
    """URLs of images, video, sound and files that are not in the request itself: one of each host."""

    @property
    def answer_tokens(self) -> int:
        """The request's limit of its answer; 0: none."""
        return self.tokens - self.prompt_tokens

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """The requirements that a group must meet."""
        if not (self.vision or self.tools):
            return ()
        return tuple([ability for ability in _ABILITIES if getattr(self, ability)])


def needs_of(document: dict[str, Any]) -> Requirements:
    """Requirements of a request with this JSON body. Reads at most `_MOST_PARTS` of its parts and never fails.

    Its URLs are looked for in all of them: the engine must get none that was not checked.
    """
    vision = audio = False
    tokens = least = 0
    texts: list[str] = []
    naming: list[dict[str, Any]] = []
    with_media, prompt = _parts(document, _WITH_MEDIA), _parts(document, ("prompt",))
    counted: list[object] = [document[name] for name in ("tools", "functions") if name in document]
    for part in islice(chain(with_media, prompt), _MOST_PARTS):
        if isinstance(part, str):
            tokens += _most_tokens(part)
            least += len(part) // (_MOST_CHARACTERS_PER_TOKEN if part.isascii() else 4)
            texts.append(part)
        elif isinstance(part, dict):
            if _is_one_of(part, VISUAL):
                vision = True
                tokens += _IMAGE_TOKENS
            if not _COUNTED.isdisjoint(part):
                counted += [part[name] for name in _COUNTED if name in part]
            audio = audio or _is_one_of(part, AUDIBLE)
            if may_name_media(part):
                naming.append(part)
        elif isinstance(part, int):  # a prompt may be a list of token ids
            tokens += 1
            least += 1
    # What has not been read, and what is not part of a prompt.
    compared = () if _COMPARED.isdisjoint(document) else _parts(document, _COMPARED)
    further = chain(with_media, compared)
    naming += [part for part in further if isinstance(part, dict) and may_name_media(part)]
    if counted:
        tokens += _most_tokens('", "'.join(islice(_json_texts(counted), _MOST_PARTS)))
    return Requirements(
        vision=vision,
        tools=_calls_tools(document),
        audio=audio,
        tokens=tokens + _answer_tokens(document),
        prompt_tokens=tokens,
        least_tokens=least,
        characters=sum(map(len, texts)),
        prefix=prefix_of(
            texts, "\0".join([given for name in _SALTS if isinstance(given := document.get(name), str)])
        ),
        media=one_per_host(url for part in naming for url in media_urls(part)) if naming else (),
    )


def can(group: GroupEntry, needs: Requirements) -> bool:
    """True if a group meets the requirements, as far as its capabilities are known."""
    wanted = needs.abilities
    return not wanted or all(getattr(group, ability) is not False for ability in wanted)


def lacking(groups: Iterable[GroupEntry], needs: Requirements) -> tuple[Ability, ...]:
    """Requirements that none of these groups meets; all of them if each group lacks some; () if one meets them all."""
    known = tuple(groups)
    if not known or any(can(group, needs) for group in known):
        return ()
    missing = (one for one in needs.abilities if all(getattr(group, one) is False for group in known))
    return tuple(missing) or needs.abilities


def too_small(groups: Iterable[GroupEntry], needs: Requirements) -> GroupEntry | None:
    """The group with the largest context if the prompt certainly exceeds all of them; None if it may fit somewhere."""
    largest: GroupEntry | None = None
    most = -1
    for group in groups:
        if group.context is None:
            return None
        if group.context > most:
            largest, most = group, group.context
    return largest if needs.least_tokens > most else None


def doubts(
    group: GroupEntry, needs: Requirements, abilities: tuple[Ability, ...] | None = None
) -> tuple[int, int]:
    """Doubts about a group that meets the requirements: unknown capabilities, and missing tokens of context.

    Args:
        abilities: those of `needs`, if they are computed already: for each group that would be slow.
    """
    unknown = 0
    for ability in needs.abilities if abilities is None else abilities:
        unknown += getattr(group, ability) is None
    if needs.audio and group.vision is False:
        unknown += 1
    context = group.context
    return unknown, (needs.tokens - context if context is not None and needs.tokens > context else 0)


def _parts(document: dict[str, Any], fields: Iterable[str]) -> Iterator[object]:
    """The input of the model in these fields: texts, messages, parts, token ids. At any depth, without recursion."""
    left = [iter([document[name] for name in fields if name in document])]
    while left:
        for part in left[-1]:
            yield part
            if isinstance(part, list):
                left.append(iter(part))
                break
            if isinstance(part, dict):
                left.append(iter([part[name] for name in _INSIDE if name in part]))
                break
        else:
            left.pop()


def _most_tokens(text: str) -> int:
    """Tokens of a text, rather too many."""
    plain = text.encode("ascii", "ignore")
    digits = len(plain) - len(plain.translate(None, _DIGITS))
    return len(text) - len(plain) + digits + (len(plain) - digits) // _CHARACTERS_PER_TOKEN


def _json_texts(values: list[object]) -> Iterator[str]:
    """The texts in JSON values, keys included, and a short one for anything else; in any order, without recursion."""
    left = [value for value in values if value is not None]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value
            left += value.values()
        elif isinstance(value, list):
            left += value
        else:
            yield value if isinstance(value, str) else "null"


def _is_one_of(part: dict[str, Any], types: frozenset[str]) -> bool:
    given = part.get("type")
    if isinstance(given, str):
        return given in types
    return "role" not in part and not types.isdisjoint(part)  # a message may have a field `audio`


def _calls_tools(document: dict[str, Any]) -> bool:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("type")
    return isinstance(tools, list) and bool(tools) and choice != "none"


def _answer_tokens(document: dict[str, Any]) -> int:
    given = [document[name] for name in _LIMITS if name in document]
    return max([0, *[one for one in given if isinstance(one, int)]])
