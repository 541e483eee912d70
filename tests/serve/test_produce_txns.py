"""Transactions on a Produce stream whose bodies the client keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.serve.columns import columns_of
from tests.serve.servers import Serving, connected, serving
from tests.serve.test_produce import append, opened, outcomes, stored
from wal import errors
from wal.message import AppendResult, Message, MessageType
from wal.requests.appends import PLAIN, WriteOptions
from wal.requests.txns import BegunTxn, CommitTxn
from wal.requests.vchannels import CreateVChannel, DropVChannel, ListVChannels
from wal.rpc.api import append_pb2
from wal.rpc.codes import error_from_proto
from wal.rpc.connection import Connection
from wal.rpc.converter import struct_from_proto
from wal.serve.access import Access
from wal.serve.produce_txns import ProduceTxns
from wal.settings import ServerBounds
from wal.write.idempotency.keys import key_ext
from wal.write.txn_table import TxnOwner


class Client:
    """A stream, and its calls about transactions."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.number = 1000

    async def ask(self, **request: Any) -> append_pb2.Outcomes:
        """Sends a request and returns its answer. Raises its error."""
        self.number += 1
        await self.stream.write(append_pb2.ProducerRequest(request_id=self.number, **request))
        answer: append_pb2.Outcomes = (await self.stream.read()).outcomes
        for failed in answer.failed:
            raise error_from_proto(failed.error)
        return answer

    async def begin(self, *names: str, **more: Any) -> append_pb2.BegunTxn:
        (begun,) = (await self.ask(begin_txn=append_pb2.BeginTxn(vchannels=names, **more))).begun
        assert begun.request_id == self.number
        return begun.txn

    async def keep(self, txn: append_pb2.BegunTxn, *, bodies: int, size: int) -> None:
        request = append_pb2.KeepTxn(txn_id=txn.context.txn_id, bodies=bodies, bytes=size)
        assert list((await self.ask(keep_txn=request)).done) == [self.number]

    async def roll_back(self, txn: append_pb2.BegunTxn) -> None:
        request = append_pb2.RollbackTxn(txn_id=txn.context.txn_id)
        assert list((await self.ask(rollback_txn=request)).done) == [self.number]

    async def commit(self, txn: append_pb2.BegunTxn, names: list[str], *bodies: Message, **options: Any) -> AppendResult:
        written = append_pb2.WriteOptions(**options)
        request = append_pb2.CommitTxn(txn=txn, vchannels=names, bodies=columns_of(bodies), options=written)
        self.number += 1
        await self.stream.write(append_pb2.ProducerRequest(request_id=self.number, commit_txn=request))
        outcome = (await outcomes(self.stream, 1))[self.number]
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, AppendResult)
        return cast("AppendResult", outcome)


@pytest.fixture
async def client(connection: Connection) -> AsyncIterator[Client]:
    one = Client(await opened(connection))
    yield one
    one.stream.cancel()


async def test_commit_sends_all_bodies(served: Serving, client: Client) -> None:
    txn = await client.begin("a", "b", keepalive_s=30.0)
    assert txn.context.keepalive_milliseconds == 30_000
    assert txn.term == next(iter(served.log.node.pchannels.values())).log.term
    await client.keep(txn, bodies=2, size=100)
    assert served.log.statistics().pchannels[0].open_transaction_bytes == 0, "they are with the client"
    result = await client.commit(txn, ["a", "b"], Message("a", b"1"), Message("b", b"2"), Message("a", b"3"))
    assert result.txn_context is not None
    assert result.txn_context.txn_id == txn.context.txn_id
    assert (await stored(served, "a"), await stored(served, "b")) == ([b"1", b"3"], [b"2"])
    assert served.log.statistics().pchannels[0].open_transaction_bytes == 0
    with pytest.raises(errors.InvalidTransactionStateError, match="was committed"):
        await client.commit(txn, ["a", "b"], Message("a", b"1"))


async def test_rollback_leaves_nothing(served: Serving, client: Client) -> None:
    txn = await client.begin("a")
    await client.keep(txn, bodies=1, size=1000)
    await client.roll_back(txn)
    await client.roll_back(txn)  # quiet: it has ended
    assert served.log.statistics().pchannels[0].open_transactions == 0
    assert served.log.statistics().pchannels[0].open_transaction_bytes == 0
    with pytest.raises(errors.InvalidTransactionStateError, match="rolled back"):
        await client.commit(txn, ["a"], Message("a", b"1"))
    with pytest.raises(errors.InvalidTransactionStateError, match="rolled back"):
        await client.keep(txn, bodies=2, size=10)
    assert await stored(served, "a") == []


async def test_exclusive_message_ends_it(served: Serving, client: Client) -> None:
    txn = await client.begin("a")
    await client.stream.write(append(1, Message("a", b"", message_type=MessageType.DROP_PARTITION)))
    await outcomes(client.stream, 1)
    with pytest.raises(errors.TransactionExpiredError, match="DROP_PARTITION"):
        await client.commit(txn, ["a"], Message("a", b"1"))


async def test_transaction_has_a_lease_and_bounds() -> None:
    async with (
        serving(txn_bytes_max=1000, txn_bodies_max=5, open_txn_bytes_max=1500, time_tick_interval_s=0.01) as served,
        connected(served.address) as connection,
    ):
        client = Client(await opened(connection))
        first, second = await client.begin("a"), await client.begin("a")
        await client.keep(first, bodies=5, size=1000)
        await client.keep(second, bodies=5, size=1000)  # they are not here, so they take no room
        with pytest.raises(errors.InvalidArgumentError, match="txn_bodies_max=5"):
            await client.keep(second, bodies=6, size=100)
        with pytest.raises(errors.InvalidArgumentError, match="txn_bytes_max=1000"):
            await client.keep(second, bodies=5, size=1001)
        with pytest.raises(errors.InvalidArgumentError, match="txn_bodies_max=5"):
            await client.commit(second, ["a"], *[Message("a", b"") for _ in range(6)])
        await client.commit(second, ["a"], Message("a", b"second"))  # it stayed open
        await client.commit(first, ["a"], Message("a", b"first"))
        brief = await client.begin("a", keepalive_s=0.02)
        while served.log.statistics().pchannels[0].open_transactions:
            await asyncio.sleep(0.01)
        with pytest.raises(errors.TransactionExpiredError, match="expired"):
            await client.commit(brief, ["a"], Message("a", b"late"))
        assert await stored(served, "a") == [b"second", b"first"]


async def test_transaction_belongs_to_its_client(served: Serving) -> None:
    async with connected(served.address) as connection, connected(served.address) as elsewhere:
        owner = Client(await opened(connection, session=b"owner"))
        others = [Client(await opened(elsewhere, session=b"other")), Client(await opened(elsewhere))]
        txn = await owner.begin("a", keepalive_s=30.0)
        for other in others:
            for call in (other.keep(txn, bodies=1, size=1), other.roll_back(txn), other.commit(txn, ["a"], Message("a", b"stolen"))):
                with pytest.raises(errors.InvalidTransactionStateError, match="belongs to another client"):
                    await call
        owner.stream.cancel()
        again = Client(await opened(elsewhere, session=b"owner"))  # the same client, on another connection
        await again.keep(txn, bodies=1, size=1)
        await again.commit(txn, ["a"], Message("a", b"1"))
        assert await stored(served, "a") == [b"1"]


async def test_client_has_bounds_of_its_own() -> None:
    bounds = ServerBounds(client_open_txns_max=3, txn_keepalive_s_max=60.0)
    async with (
        serving(access=Access(listen="127.0.0.1:0", bounds=bounds)) as served,
        connected(served.address) as connection,
        connected(served.address) as elsewhere,
    ):
        client, other = Client(await opened(connection, session=b"1")), Client(await opened(elsewhere, session=b"2"))
        for keepalive_s in (60.1, float("inf"), float("nan"), -1.0):
            with pytest.raises(errors.InvalidArgumentError, match="txn_keepalive_s_max=60"):
                await client.begin("a", keepalive_s=keepalive_s)
        txns = [await client.begin("a", keepalive_s=60.0) for _ in range(3)]
        with pytest.raises(errors.WouldBlockError, match="client_open_txns_max=3"):
            await client.begin("a")
        await other.commit(await other.begin("a"), ["a"], Message("a", b"other"))
        await client.roll_back(txns[0])
        await client.commit(await client.begin("a"), ["a"], Message("a", b"1"))
        assert await stored(served, "a") == [b"other", b"1"]


async def test_key_is_judged_at_the_commit(served: Serving, client: Client) -> None:
    key = key_ext("once")
    results = []
    for _ in range(2):
        txn = await client.begin("a", options=append_pb2.WriteOptions(key=key))
        results.append(await client.commit(txn, ["a"], Message("a", b"1"), key=key))
    assert [result.duplicate for result in results] == [False, True]
    assert await stored(served, "a") == [b"1"]


async def test_commit_with_a_key_may_be_sent_again(tmp_path: Path) -> None:
    key = key_ext("once")
    async with serving(tmp_path) as served, connected(served.address) as connection:
        client = Client(await opened(connection))
        txn = await client.begin("a", options=append_pb2.WriteOptions(key=key))
        first = await client.commit(txn, ["a"], Message("a", b"1"), key=key)
        again = await client.commit(txn, ["a"], Message("a", b"1"), key=key)
        assert (again.duplicate, again.message_id) == (True, first.message_id)
        with pytest.raises(errors.InvalidTransactionStateError, match="was committed"):
            await client.commit(txn, ["a"], Message("a", b"1"), key=key_ext("other"))
        await client.stream.write(append(1, Message("a", b"x", message_type=MessageType.DROP_PARTITION)))
        await outcomes(client.stream, 1)
    async with serving(tmp_path) as served, connected(served.address) as connection:
        client = Client(await opened(connection))
        again = await client.commit(txn, ["a"], Message("a", b"1"), key=key)
        assert (again.duplicate, again.message_id) == (True, first.message_id)
        assert await stored(served, "a") == [b"1", b"x"]


async def test_commit_that_is_sent_twice_in_one_turn_is_written_once(served: Serving, client: Client) -> None:
    """The second is executed before the first has had its turn: with a key it gets the first result, without one it is an error."""
    owner = TxnOwner(b"", ServerBounds().client_open_txns_max, ServerBounds().client_open_txn_bytes_max)
    (pchannel,) = served.log.node.pchannels.values()
    txns, futures = ProduceTxns(served.log.node, pchannel, owner, keepalive_s_max=60.0), list[asyncio.Future[Any]]()
    bodies = [Message("a", b"1"), Message("a", b"2")]
    for options in (WriteOptions(key="once"), PLAIN):
        begun = struct_from_proto(BegunTxn, await client.begin("a"))
        request = CommitTxn(("a",), options, bodies=bodies, txn=begun)
        committing = [txns.commit(request) for _ in range(2)]
        for commit in committing:  # none of them waits, so that no actor has a turn in between
            with pytest.raises(StopIteration) as ended:
                commit.send(None)
            futures.append(ended.value.value)
    first, again, plain, refused = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(first, AppendResult)
    assert isinstance(again, AppendResult)
    assert isinstance(plain, AppendResult)
    assert (first.duplicate, again.duplicate, again.message_id) == (False, True, first.message_id)
    assert isinstance(refused, errors.InvalidTransactionStateError)
    assert await stored(served, "a") == [b"1", b"2"] * 2
    assert pchannel.in_flight.size == 0


@pytest.mark.parametrize("recreated", [False, True])
async def test_dropped_vchannel_ends_it_also_across_a_restart(tmp_path: Path, recreated: bool) -> None:
    async with serving(tmp_path) as served, connected(served.address) as connection:
        txn = await Client(await opened(connection)).begin("a", "b")
        await served.log.submit(DropVChannel("b"))
        if recreated:
            await served.log.submit(CreateVChannel("b"))
    async with serving(tmp_path) as served, connected(served.address) as connection:
        with pytest.raises(errors.ChannelNotExistError, match="dropped"):
            await Client(await opened(connection)).commit(txn, ["a", "b"], Message("a", b"1"))
        assert served.log.statistics().pchannels[0].open_transactions == 0
        assert [info.name for info in await served.log.submit(ListVChannels())] == ["a", "b"][: 1 + recreated]


@pytest.mark.parametrize("wrong", [{"names": []}, {"names": ["a", "a"]}, {"names": ["a"], "keepalive_s": -1.0}])
async def test_wrong_begin_is_an_error(client: Client, wrong: dict[str, Any]) -> None:
    names = wrong.pop("names")
    with pytest.raises(errors.InvalidArgumentError):
        await client.begin(*names, **wrong)
    await client.begin("a")  # the stream continues


async def test_commit_names_the_vchannels_of_its_begin(client: Client) -> None:
    txn = await client.begin("a")
    with pytest.raises(errors.InvalidArgumentError, match="vchannels a, not b"):
        await client.commit(txn, ["b"], Message("b", b"1"))
    txn.term += 1
    with pytest.raises(errors.UnmatchedChannelTermError, match="was begun in term"):
        await client.commit(txn, ["a"], Message("a", b"1"))


async def test_commit_is_for_vchannels_of_the_pchannel_of_its_stream() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        await served.log.submit(CreateVChannel("a", "p0"))
        await served.log.submit(CreateVChannel("b", "p1"))
        client = Client(await opened(connection))
        txn = await client.begin("a")
        with pytest.raises(errors.ChannelNotExistError, match="this stream writes p0"):
            await client.commit(txn, ["b"], Message("b", b"1"))
        await client.commit(txn, ["a"], Message("a", b"1"))


async def test_commit_after_a_restart_begins_the_transaction_anew(tmp_path: Path) -> None:
    async def restarted(data_dir: Path, between: Message | None) -> errors.WALError | list[bytes]:
        """Begins a transaction, appends a message, restarts the server, and commits; returns the error or what is stored then."""
        async with serving(data_dir) as served, connected(served.address) as connection:
            client = Client(await opened(connection))
            await client.stream.write(append(0, Message("a", b"before", message_type=MessageType.DROP_PARTITION)))
            await outcomes(client.stream, 1)
            txn = await client.begin("a", "b")
            if between is not None:
                await client.stream.write(append(1, between))
                await outcomes(client.stream, 1)
        async with serving(data_dir) as served, connected(served.address) as connection:
            client = Client(await opened(connection))
            try:
                await client.commit(txn, ["a", "b"], Message("a", b"1"), Message("b", b"2"))
            except errors.WALError as error:
                assert not served.log.statistics().pchannels[0].open_transactions
                return error
            return await stored(served, "a")

    assert await restarted(tmp_path / "1", None) == [b"before", b"1"]
    assert await restarted(tmp_path / "2", Message("a", b"x")) == [b"before", b"x", b"1"]
    other = Message("other", b"x", message_type=MessageType.DROP_PARTITION)
    assert await restarted(tmp_path / "3", other) == [b"before", b"1"]
    spanned = await restarted(tmp_path / "4", Message("b", b"x", message_type=MessageType.DROP_PARTITION))
    assert isinstance(spanned, errors.TransactionExpiredError)
