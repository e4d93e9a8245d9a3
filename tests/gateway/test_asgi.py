import asyncio

import pytest

from sparkfleet.gateway.asgi import ClientGone, Message, Receive, WhileConnected, respond


def client(hangs_up: asyncio.Event) -> Receive:
    async def receive() -> Message:
        await hangs_up.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_body_that_ends_while_the_client_is_there() -> None:
    async with WhileConnected(client(asyncio.Event())):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_client_that_hangs_up_cancels_what_is_waited_for() -> None:
    hangs_up, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with WhileConnected(client(hangs_up)):
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    asyncio.get_running_loop().call_soon(hangs_up.set)
    with pytest.raises(ClientGone):
        await work()
    assert ended.is_set()
    await asyncio.sleep(0)  # nothing is left to be delivered later


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        async with WhileConnected(client(asyncio.Event())):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_of_both_at_once_the_other_cancellation_wins() -> None:
    hangs_up = asyncio.Event()

    async def work() -> None:
        async with WhileConnected(client(hangs_up)):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    hangs_up.set()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_body_passes() -> None:
    with pytest.raises(KeyError):
        async with WhileConnected(client(asyncio.Event())):
            raise KeyError


@pytest.mark.parametrize(
    ("status", "head", "length", "shown"),
    [
        (200, False, [(b"content-length", b"3")], b"abc"),
        (200, True, [(b"content-length", b"3")], b""),
        (204, False, [], b""),
    ],
)
async def test_a_whole_answer(
    status: int, head: bool, length: list[tuple[bytes, bytes]], shown: bytes
) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await respond(send, status, [(b"a", b"b")], b"" if status == 204 else b"abc", head=head)
    assert sent == [
        {"type": "http.response.start", "status": status, "headers": [(b"a", b"b"), *length]},
        {"type": "http.response.body", "body": shown},
    ]
