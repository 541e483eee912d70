"""The numbers by which a server recognises a client's abandoned changes, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.rpc.server import Server, connected, listed, serving, until
from wal.errors import SessionLostError, UnknownOutcomeError
from wal.requests.vchannels import CreateVChannel
from wal.rpc.api import requests_pb2
from wal.rpc.connection import Connection
from wal.rpc.headers import session_in


class Noting(Server):
    """Notes the numbers of the calls that arrive, None for those without a session."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int | None] = []
        self.sessions: set[str] = set()
        self.refuse_below = 0

    async def list(self, context: Any) -> requests_pb2.SubmitResponse:
        self._note(context)
        return await super().list(context)

    async def create(self, request: requests_pb2.CreateVChannel, context: Any) -> requests_pb2.SubmitResponse:
        number = self._note(context)
        answer = await super().create(request, context)
        if number < self.refuse_below:
            raise SessionLostError("late")
        return answer

    def _note(self, context: Any) -> int:
        found = session_in(context.invocation_metadata())
        self.numbers.append(None if found is None else found[1])
        if found is None:
            return -1
        self.sessions.add(found[0])
        return found[1]


async def create(connection: Connection, *, timeout_s: float | None = None) -> None:
    await connection.submit(CreateVChannel("x"), timeout_s=timeout_s)


async def test_change_that_is_given_up_is_overtaken_by_all_later_calls() -> None:
    fake = Noting()
    async with serving(fake) as port, connected(port) as connection, connected(port) as other:
        await listed(connection)
        await create(connection)
        assert fake.numbers == [None, 0]
        fake.hang.clear()
        with pytest.raises(UnknownOutcomeError):
            await create(connection, timeout_s=0.2)
        cancelled = asyncio.ensure_future(create(connection))
        await until(lambda: len(fake.numbers) == 4)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        fake.hang.set()
        await listed(connection)
        await create(connection)
        assert fake.numbers == [None, 0, 0, 1, 2, 2]
        assert len(fake.sessions) == 1
        await create(other)
        assert fake.numbers[-1] == 0
        assert len(fake.sessions) == 2


async def test_change_that_another_one_has_overtaken_is_sent_again() -> None:
    """It was on its way when the client gave up another one, so the server has refused it."""
    fake = Noting()
    async with serving(fake) as port, connected(port) as connection:
        fake.hang.clear()
        waiting = asyncio.ensure_future(create(connection))
        await until(lambda: len(fake.numbers) == 1)
        with pytest.raises(UnknownOutcomeError):
            await create(connection, timeout_s=0.2)
        fake.refuse_below = 1
        fake.hang.set()
        await waiting
        assert fake.numbers == [0, 0, 1]
        fake.refuse_below = 9
        with pytest.raises(SessionLostError):  # it has the newest number: sending it again would not help
            await create(connection)
