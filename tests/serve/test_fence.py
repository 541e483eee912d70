"""The fence of a node: changes of one session are executed in the order of their numbers, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.serve.foreign import keep_poller
from tests.serve.servers import Serving
from wal.coordinator.vchannels import VChannels
from wal.errors import InvalidArgumentError, SessionLostError
from wal.requests.request import Request
from wal.requests.vchannels import CreateVChannel, DropVChannel, ListVChannels
from wal.rpc.codes import error_in
from wal.rpc.converter import answer_from_proto, request_to_proto
from wal.rpc.headers import session_header
from wal.rpc.methods import SUBMIT
from wal.serve import fence

CREATE = CreateVChannel("orders")
DROP = DropVChannel("orders")
LIST = ListVChannels()


async def call(served: Serving, request: Request[Any], *header: tuple[str, str]) -> Any:
    """Returns the answer to a request with this metadata; raises the error of the server."""
    keep_poller()
    async with grpc.aio.insecure_channel(served.address) as channel:
        try:
            answer = await channel.unary_unary(SUBMIT.path, **SUBMIT.serializers())(request_to_proto(request, None), metadata=header)
            return answer_from_proto(type(request), answer)
        except grpc.aio.AioRpcError as error:
            raise error_in(error) or error from None


def names(served: Serving) -> list[str]:
    return list(served.log.coordinator.vchannels.records)


async def test_change_with_an_older_number_is_refused(served: Serving) -> None:
    await call(served, CREATE, session_header("a", 0))
    await call(served, LIST, session_header("a", 1))
    with pytest.raises(SessionLostError, match="nothing was changed"):
        await call(served, DROP, session_header("a", 0))
    assert names(served) == ["orders"]
    assert len(await call(served, LIST, session_header("a", 0))) == 1  # a read does no harm
    await call(served, DROP, session_header("a", 1))
    assert names(served) == []


async def test_sessions_do_not_concern_each_other(served: Serving) -> None:
    await call(served, LIST, session_header("a", 7))
    await call(served, CREATE, session_header("b", 0))
    await call(served, DROP)  # a client without a session, such as one of Milvus' protocol
    assert names(served) == []


async def test_change_that_has_begun_is_waited_for(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next call of its client sees what came of it."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    create = VChannels.create

    async def slow(vchannels: VChannels, *given: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await create(vchannels, *given)

    monkeypatch.setattr(VChannels, "create", slow)
    creating = asyncio.ensure_future(call(served, CREATE, session_header("a", 0)))
    await begun.wait()
    await call(served, LIST, session_header("a", 0))  # one of the same number does not wait
    listing = asyncio.ensure_future(call(served, LIST, session_header("a", 1)))
    await asyncio.wait([listing], timeout=0.3)
    assert not listing.done()
    go_on.set()
    assert [info.name for info in await listing] == ["orders"]
    await creating


async def test_remembered_sessions_are_bounded(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that was silent longest is forgotten."""
    monkeypatch.setattr(fence, "SESSIONS_MAX", 2)
    for session in ("a", "b", "a", "c"):
        await call(served, LIST, session_header(session, 1))
    await call(served, CREATE, session_header("b", 0))
    with pytest.raises(SessionLostError):
        await call(served, DROP, session_header("a", 0))


@pytest.mark.parametrize("text", ["", "a", "a -1", "a 1.5", "a b", " 1", "a 1 2", "x" * 65 + " 1", "a " + "1" * 19])
async def test_session_that_cannot_be_read_is_refused(served: Serving, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="calls-session"):
        await call(served, CREATE, ("calls-session", text))
    assert names(served) == []
