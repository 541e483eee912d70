"""A server that is sent 300 requests that are wrong, 10,000 in a soak.

Every answer is a typed error, or gRPC's own for what no handler sees; a wrong request ends its own stream at most; a neighbour on the same
connection notices nothing; nothing is in the log that nobody asked for; and the server's memory does not grow.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from tests.serve.bad_input import corpus
from tests.serve.bad_input.exchanges import DEADLINE_S, Answer, Exchanges
from tests.serve.bad_input.mutations import mutated
from tests.serve.bad_input.neighbour import NAME, Neighbour
from tests.serve.foreign import varint
from tests.serve.servers import child, serving
from wal import open_wal
from wal.message import MessageType
from wal.network import TlsFiles
from wal.requests.vchannels import ListVChannels
from wal.rpc import methods as m
from wal.rpc.auth import Token
from wal.rpc.codes import error_in
from wal.rpc.headers import token_header
from wal.runtime.secret import Secret
from wal.serve.access import Access

SEED: Final = int(os.environ.get("WAL_TEST_SEED", "0"))
REPLAY: Final = f"replay with WAL_TEST_SEED={SEED} python -m pytest tests/serve/bad_input"
BOUNDS: Final = (
    "--vchannels-max", "200", "--producers-max", "100", "--idempotency-window-count", "1000", "--open-txn-bytes-max", "4194304",
    "--broadcast-tasks-max", "50", "--retention-bytes", "67108864",
)  # fmt: skip
"""Small bounds, so that what is full answers as well, and so that the server's memory has its size soon."""


async def test_wrong_requests_are_answered_and_harm_nobody(data_dir: Path, soak: int) -> None:
    REQUESTS = 300
    requests_soak = 10_000
    # The tenths of the requests after which the memory of the server has its size: in a soak its window of recent frames is full then.
    settled = 2
    # The growth of the memory that is allowed after that: 9 MiB if the allocator keeps the room of the largest request, 11 for the room
    # that Python's allocator keeps after the requests with the most objects (measured), and 4 for the index of the log and the
    # vchannels, which are bounded. 8 to 15 MiB in all were measured in three runs.
    growth_bytes_max = 24 << 20
    # The allocator has one arena for all threads of gRPC: what each of several arenas keeps free would be measured as growth.
    one_arena = {"MALLOC_ARENA_MAX": "1"}
    oversize = 9 << 20

    class Attack:
        """Sends one wrong request after the other; `loose` is what was sent without an answer."""

        def __init__(self, exchanges: Exchanges, world: corpus.World) -> None:
            self.ids: set[bytes] = set()
            self.loose: list[bytes] = []
            self.kinds: Counter[str] = Counter()
            self._exchanges = exchanges
            self._world = world

        async def strike(self, number: int) -> None:
            chance = Random(f"{SEED} {number}")
            tag = b"fuzz-%d" % number
            share = chance.random()
            if share < 0.4:
                await self._ask(number, tag, chance)
            elif share < 0.7:
                await self._produce(number, tag, chance)
            elif share < 0.82:
                await self._consume(number, chance)
            elif share < 0.93:
                self.kinds["FollowTail"] += 1
                await self._converse(m.FOLLOW_TAIL, number, (), some_mutated(corpus.followed(self._world, chance), chance), chance)
            else:
                await self._discover(number, chance)

        async def _ask(self, number: int, tag: bytes, chance: Random) -> None:
            method = chance.choice(corpus.methods())
            request = corpus.unary(method, self._world, tag, chance)
            data = mutated(request, chance)
            if chance.random() < 0.01:
                data += field_of(oversize)
            name, streams = method.path.rpartition("/")[2], method in (m.READ_FRAMES, m.WATCH_VCHANNELS)
            cancel = chance.random() < 0.05
            self.kinds[name] += 1
            self._note(await self._exchanges.ask(method, data, f"{number} {name} {data[:200]!r}", streams=streams, cancel=cancel), [data])

        async def _produce(self, number: int, tag: bytes, chance: Random) -> None:
            self.kinds["Produce"] += 1
            if chance.random() < 0.2:
                requests = corpus.milvus_produced(self._world, tag, chance)
                metadata = _metadata("create-producer", corpus.milvus_producer(self._world), chance)
                await self._converse(m.MILVUS_PRODUCE, number, metadata, some_mutated(requests, chance), chance)
                return
            requests = corpus.produced(self._world, tag, chance)
            await self._converse(m.PRODUCE, number, (), some_mutated(requests, chance), chance)

        async def _consume(self, number: int, chance: Random) -> None:
            self.kinds["Consume"] += 1
            created = corpus.consumer(self._world, chance)
            requests = corpus.consumed()
            metadata = _metadata("create-consumer", created, chance)
            await self._converse(m.CONSUME, number, metadata, some_mutated(requests, chance), chance)

        async def _discover(self, number: int, chance: Random) -> None:
            self.kinds["AssignmentDiscover"] += 1
            await self._converse(m.ASSIGNMENT_DISCOVER, number, (), some_mutated(corpus.discover(self._world, chance), chance), chance)

        async def _converse(self, method: Any, number: int, metadata: Any, requests: list[bytes], chance: Random) -> None:
            what = f"{number} {method.path.rpartition('/')[2]} {metadata} {[data[:200] for data in requests]}"
            cancel = chance.random() < 0.1
            self._note(await self._exchanges.converse(method, metadata, requests, what, cancel=cancel), requests)

        def _note(self, answer: Answer, sent: list[bytes]) -> None:
            self.ids |= answer.ids
            self._world.txns.extend(answer.begun)
            del self._world.txns[:-5]
            if not answer.complete:
                self.loose += sent

    def field_of(size: int) -> bytes:
        """Returns an unknown field of this size."""
        return b"\xfa\x7f" + varint(size) + bytes(size)

    def _metadata(name: str, created: Any, chance: Random) -> tuple[tuple[str, str | bytes], ...]:
        """Returns the metadata that creates a stream, right or wrong."""
        right = base64.b64encode(created.SerializeToString()).decode()
        share = chance.random()
        if share < 0.6:
            return ((name, right),)
        if share < 0.85:
            return ((name, base64.b64encode(mutated(created, chance)).decode()),)
        wrong = base64.b64encode(chance.randbytes(30)).decode()
        return chance.choice(
            (
                (),
                ((name, ""),),
                ((name, "?"),),
                ((name, right[:-1]),),
                ((name, wrong),),
                ((name, right), (name, right)),
                ((f"{name}-bin", created.SerializeToString()),),
                ((name, "A" * 6000),),
                ((name, "A" * 100_000),),
                (("create-consumer" if name != "create-consumer" else "create-producer", right),),
            )
        )

    def some_mutated(requests: list[Any], chance: Random) -> list[bytes]:
        """Returns the requests of a stream: one of them wrong, missing, repeated, or in another place."""
        sent = [request.SerializeToString() for request in requests]
        at = chance.randrange(len(sent))
        match chance.randrange(10):
            case 0:
                del sent[at]
            case 1:
                sent.insert(chance.randrange(len(sent) + 1), sent[at])
            case 2:
                chance.shuffle(sent)
            case 3:
                sent.append(sent[at])  # after the close
            case 4 if chance.random() < 0.1:
                sent[at] += field_of(oversize)
            case _:
                sent[at] = mutated(requests[at], chance)
        return sent

    async def check_log(data_dir: Path, neighbour: Neighbour, attack: Attack) -> None:
        """Checks that the log has everything that was acknowledged to the neighbour, and nothing that nobody asked for."""
        unasked: list[str] = []
        async with open_wal(data_dir) as log:
            for info in await log.vchannels():
                async with log.read(info.name, follow=False) as scanner:
                    found = [message async for message in scanner]
                if info.name == NAME:
                    kept = [message.message_id for message in found]
                    assert kept == neighbour.ids[-len(kept) :], REPLAY
                    assert kept
                    continue
                unasked += [
                    f"{message!r}"
                    for message in found
                    if bytes(message.message_id) not in attack.ids
                    and message.message_type is not MessageType.ABORT_BROADCAST
                    and not all(any(body.payload in sent for sent in attack.loose) for body in message.bodies())
                ]
        assert not unasked, "\n".join([REPLAY, *unasked])

    print(REPLAY)
    count = REQUESTS if soak == 1 else requests_soak
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]
    async with child(data_dir, *BOUNDS, **one_arena) as server:
        async with grpc.aio.insecure_channel(server.address, options=options) as channel:
            neighbour = await Neighbour(channel).open()
            world, exchanges = corpus.World(neighbour.log), Exchanges(channel)
            attack = Attack(exchanges, world)
            memory: list[int] = []
            for number in range(count):
                await neighbour.step()
                ids = neighbour.ids
                world.old, world.kept, world.newest = ids[max(0, len(ids) - 300)], ids[max(0, len(ids) - 100)], ids[-1]
                world.tick = neighbour.tick
                await attack.strike(number)
                if number % (count // 10) == 0:
                    memory.append(resident(server.process.pid))
            memory.append(resident(server.process.pid))
            await neighbour.close()
        print(dict(exchanges.seen), dict(attack.kinds), f"slowest {exchanges.slowest_s:.2f} s")
        print("memory in MiB:", [round(size / (1 << 20), 1) for size in memory])
        for kind, text in sorted(exchanges.samples.items()):
            print(f"{kind.split()[0]}: {text[:300]}")
        assert not exchanges.defects, "\n".join([REPLAY, *exchanges.defects])
        assert await server.stop() == 0
    await check_log(data_dir, neighbour, attack)
    assert memory[-1] - memory[settled] < growth_bytes_max, REPLAY


async def test_strangers_and_what_is_not_grpc_harm_nobody(certificates: Path, soak: int) -> None:
    strangers = 30

    async def without_a_token(_address: str, channel: grpc.aio.Channel, world: corpus.World, chance: Random) -> None:
        method = chance.choice(corpus.methods())
        tokens = (
            (),
            ("Bearer shut",),
            ("Bearer open ",),
            ("open",),
            ("Basic open",),
            ("Bearer open", "Bearer open"),
            ("Bearer " + "o" * 5000,),
        )
        metadata = [("authorization", token) for token in chance.choice(tokens)]
        call: Any = channel.unary_unary(method.path)(
            corpus.unary(method, world, b"fuzz-1", chance).SerializeToString(), metadata=metadata, timeout=DEADLINE_S
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, REPLAY
        assert "give the client the server's token" in str(error_in(refused.value)), REPLAY

    async def in_plaintext(address: str, _channel: grpc.aio.Channel, world: corpus.World, chance: Random) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        method = chance.choice(corpus.methods())
        async with grpc.aio.insecure_channel(address, options=options) as plain:
            call: Any = plain.unary_unary(method.path)(
                corpus.unary(method, world, b"fuzz-1", chance).SerializeToString(), timeout=DEADLINE_S
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, REPLAY  # no connection for an answer

    async def with_garbage(address: str, _channel: grpc.aio.Channel, _world: corpus.World, chance: Random) -> None:
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(chance.choice((b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", chance.randbytes(5000))))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    own = TlsFiles(certificate=certificates / "server.pem", key=certificates / "server.key")
    access = Access(listen="127.0.0.1:0", tls=own, tokens=[Token(Secret("open"))])
    credentials = await TlsFiles(ca=certificates / "ca.pem").credentials()
    async with serving(access=access) as served, grpc.aio.secure_channel(served.address, credentials) as channel:
        neighbour = await Neighbour(channel, token_header(Secret("open"))).open()
        world = corpus.World(neighbour.log)
        for number in range(strangers * soak):
            chance = Random(f"{SEED} stranger {number}")
            world.old = world.kept = world.newest = neighbour.ids[-1]
            world.tick = neighbour.tick
            await chance.choice((without_a_token, in_plaintext, with_garbage))(served.address, channel, world, chance)
            await neighbour.step()
        await neighbour.close()
        assert [info.name for info in await served.log.submit(ListVChannels())] == [NAME]
        assert served.log.statistics().pchannels[0].events == len(neighbour.ids)


def resident(pid: int) -> int:
    """Returns the bytes of memory that a process uses."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
