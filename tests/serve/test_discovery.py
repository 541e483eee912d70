"""AssignmentDiscover, as a client of Milvus' protocol sees it."""

from __future__ import annotations

import grpc
import grpc.aio

from tests.rpc.contract import Contract
from tests.serve.foreign import Foreign
from tests.serve.servers import Serving, serving
from wal.serve.access import Access


async def test_all_pchannels_are_on_the_one_node(served: Serving, foreign: Foreign) -> None:
    call = foreign.discover()
    full = (await call.read()).full_assignment
    (assignment,) = full.assignments
    assert (assignment.node.server_id, assignment.node.address) == (1, served.address)
    here = {name: pchannel.log.term for name, pchannel in served.log.node.pchannels.items()}
    assert {info.name: info.term for info in assignment.channels} == here
    assert (full.version.local, getattr(full.version, "global")) == (1, max(here.values()))

    close = foreign.kind("AssignmentDiscoverRequest")(close=foreign.kind("CloseAssignmentDiscoverRequest")())
    await call.write(close)
    assert (await call.read()).WhichOneof("response") == "close"
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_clients_are_told_the_address_that_is_advertised(contract: Contract) -> None:
    access = Access(listen="127.0.0.1:0", advertise="log.example:8810")
    async with serving(access=access) as served, Foreign(served.address, contract) as foreign:
        (assignment,) = (await foreign.discover().read()).full_assignment.assignments
        assert assignment.node.address == "log.example:8810"


async def test_reported_error_is_answered_only_if_the_client_has_an_old_assignment(foreign: Foreign) -> None:
    call = foreign.discover()
    info = (await call.read()).full_assignment.assignments[0].channels[0]
    error = foreign.kind("StreamingError")(code=3, cause="fenced")
    request = foreign.kind("AssignmentDiscoverRequest")
    report = foreign.kind("ReportAssignmentErrorRequest")
    await call.write(request(report_error=report(pchannel=info, err=error)))  # it is here: nothing to say
    old = foreign.kind("PChannelInfo")(name=info.name, term=info.term + 1)
    await call.write(request(report_error=report(pchannel=old, err=error)))
    assert (await call.read()).full_assignment.assignments[0].channels[0] == info
    await call.write(request(close=foreign.kind("CloseAssignmentDiscoverRequest")()))
    assert (await call.read()).WhichOneof("response") == "close"


async def test_request_without_a_command_ends_its_stream_only(foreign: Foreign) -> None:
    other = foreign.discover()
    await other.read()
    call = foreign.discover()
    await call.write(foreign.kind("AssignmentDiscoverRequest")())
    code, error = await foreign.error_of(call)
    assert (code, error.code) == (grpc.StatusCode.INVALID_ARGUMENT, 10)
    assert "set report_error or close" in error.cause
    await other.write(foreign.kind("AssignmentDiscoverRequest")(close=foreign.kind("CloseAssignmentDiscoverRequest")()))
    assert (await other.read()).WhichOneof("response") == "close"


async def test_stopping_node_ends_the_streams(served: Serving, foreign: Foreign) -> None:
    call = foreign.discover()
    await call.read()
    await served.node.close()
    code, error = await foreign.error_of(call)
    assert (code, error.code) == (grpc.StatusCode.FAILED_PRECONDITION, 4)
