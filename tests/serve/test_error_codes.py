"""Every code of Milvus' protocol, as a client that was built from its text alone receives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import pytest

from tests.serve.foreign import Foreign
from tests.serve.servers import Serving, connected
from tests.serve.test_message_txns import Producer, Refused
from wal.errors import ChannelExistError, ChannelFencedError
from wal.requests.vchannels import CreateVChannel

STATUS = grpc.StatusCode.FAILED_PRECONDITION
Case = Callable[[Serving, Foreign], Awaitable[tuple[grpc.StatusCode | None, int]]]
"""Makes a server answer with an error; returns the status (None: it is the answer to a request) and the code."""


async def ended(foreign: Foreign, call: Any) -> tuple[grpc.StatusCode, int]:
    status, error = await foreign.error_of(call)
    return status, error.code


async def channel_exist(served: Serving, _foreign: Foreign) -> tuple[None, int]:
    # Milvus' own call for it is Assign, which a cluster has. The code is the same in the call that creates a vchannel here.
    async with connected(served.address) as connection:
        await connection.submit(CreateVChannel("orders"))
        with pytest.raises(ChannelExistError) as refused:
            await connection.submit(CreateVChannel("orders"))
    return None, int(refused.value.code)


async def channel_not_exist(_served: Serving, foreign: Foreign) -> tuple[grpc.StatusCode, int]:
    return await ended(foreign, foreign.produce(foreign.kind("PChannelInfo")(name="of-another-node", term=1)))


async def channel_fenced(served: Serving, foreign: Foreign) -> tuple[None, int]:
    producer = await Producer.open(foreign)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.fail(ChannelFencedError("a writer of a higher term has the pchannel"))
    with pytest.raises(Refused) as refused:
        await producer.send("orders", b"x")
    return None, refused.value.code


async def on_shutdown(served: Serving, foreign: Foreign) -> tuple[grpc.StatusCode, int]:
    info = await foreign.assigned()
    producer = await Producer.open(foreign)
    closing = asyncio.ensure_future(served.node.close())
    assert (await producer.call.read()).HasField("close")  # open calls succeed, and new ones are refused
    found = await ended(foreign, foreign.produce(info))
    await closing
    return found


async def invalid_request_seq(served: Serving, foreign: Foreign) -> tuple[grpc.StatusCode, int]:
    producer = await Producer.open(foreign)
    kind = foreign.kind
    close = kind("ProduceRequest")(close=kind("CloseProducerRequest")())
    late = foreign.request(2, foreign.message("orders", b"late"))
    # The answer to the close waits for the message, which is not written before the server has read what follows the close.
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.actor_group.pause()
    await producer.call.write(foreign.request(1, foreign.message("orders", b"held")))
    await producer.call.write(close)
    await producer.call.write(late)
    while any(task.get_name() == f"requests for {pchannel.channel}" for task in asyncio.all_tasks()):
        await asyncio.sleep(0.001)
    pchannel.actor_group.resume()
    return await ended(foreign, producer.call)


async def unmatched_channel_term(_served: Serving, foreign: Foreign) -> tuple[grpc.StatusCode, int]:
    info = await foreign.assigned()
    return await ended(foreign, foreign.consume(foreign.kind("PChannelInfo")(name=info.name, term=info.term + 1)))


async def invalid_argument(_served: Serving, foreign: Foreign) -> tuple[grpc.StatusCode, int]:
    return await ended(foreign, foreign.consume(await foreign.assigned()))  # without a deliver policy


CASES: Final[dict[str, tuple[Case, grpc.StatusCode | None]]] = {
    "STREAMING_CODE_CHANNEL_EXIST": (channel_exist, None),
    "STREAMING_CODE_CHANNEL_NOT_EXIST": (channel_not_exist, STATUS),
    "STREAMING_CODE_CHANNEL_FENCED": (channel_fenced, None),
    "STREAMING_CODE_ON_SHUTDOWN": (on_shutdown, STATUS),
    "STREAMING_CODE_INVALID_REQUEST_SEQ": (invalid_request_seq, STATUS),
    "STREAMING_CODE_UNMATCHED_CHANNEL_TERM": (unmatched_channel_term, STATUS),
    "STREAMING_CODE_INVAILD_ARGUMENT": (invalid_argument, grpc.StatusCode.INVALID_ARGUMENT),
}


@pytest.mark.parametrize("name", CASES)
async def test_code_arrives(name: str, served: Serving, foreign: Foreign) -> None:
    case, status = CASES[name]
    number = foreign.contract.enums()["StreamingCode"].values_by_name[name].number
    assert await case(served, foreign) == (status, number)


async def test_every_code_of_the_contract_is_accounted_for(foreign: Foreign) -> None:
    # The codes that this server does not produce, and why.
    not_here = {
        "STREAMING_CODE_OK": "it is no error: an answer has a result",
        "STREAMING_CODE_IGNORED_OPERATION": "the answer to an Assign of the same term, a call between the servers of a cluster",
        "STREAMING_CODE_INNER": "a failure of a service below the server: a cluster's metadata",
        "STREAMING_CODE_EOF": "the end of a stream is the status OK, after the answer to its close",
        "STREAMING_CODE_UNKNOWN": "a defect of the server: no request may produce one, which tests/serve/bad_input checks",
    }

    assert {*CASES, *not_here} == set(foreign.contract.enums()["StreamingCode"].values_by_name)


async def test_both_components_say_that_they_are_healthy(served: Serving, foreign: Foreign) -> None:
    for service, role in (("StreamingCoordStateService", "coord"), ("StreamingNodeStateService", "node")):
        states = await foreign.ask(service, "GetComponentStates")
        assert (states.state.role, states.state.state_code, states.status.error_code) == (f"streaming{role}", 1, 0)
        assert states.state.nodeID == 1
    await served.node.close()
