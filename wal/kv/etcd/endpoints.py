"""Endpoints: the members of one etcd, a channel to each, and the choice of one for calls.

Owns: the channels, and the one task that looks for a member while none is reachable. It returns a channel only while that is connected, so
that a call that finds none has certainly not been sent. gRPC reconnects by itself, at most every two seconds; nothing here spins. Its only
own call asks why a member cannot be reached.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from wal.kv.etcd.api import rpc_pb2 as rpc
from wal.kv.etcd.requests import RANGE

__all__ = ["Endpoints"]

_OPTIONS: Final[list[tuple[str, Any]]] = [
    # An answer may be larger than gRPC's default of 4 MiB: one value has up to 1.5 MiB, and a transaction reads 128 of them.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Pings find a member that is frozen, or cut off by a broken cable: after 10 s of silence, when no answer came for 5 s. In grpcio
    # 1.76 to 1.85 ping_timeout_ms decides. There are none without calls: etcd ends such connections (too_many_pings).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own back-off grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.service_config_disable_resolution", 1),  # the DNS is not asked for settings of a service
    ("grpc.enable_http_proxy", 0),  # metadata goes to etcd, not through a proxy that a shell happens to name
    ("grpc.use_local_subchannel_pool", 1),  # closing one KV must not close another's connection
]
_WHY_TIMEOUT_S: Final = 1.0


class Endpoints:
    """The members by `host:port`. A member that answered is used until it fails."""

    def __init__(self, addresses: Sequence[str], *, credentials: grpc.ChannelCredentials | None) -> None:
        _keep_poller()
        self.addresses: tuple[str, ...] = tuple(addresses)
        self._channels = [
            grpc.aio.insecure_channel(address, options=_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
            for address in addresses
        ]
        self._current = 0
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[str] | None = None
        self._stopped = False

    def connected(self) -> tuple[int, grpc.aio.Channel] | None:
        """Returns the channel to ask and its number; None while no member is connected."""
        for step in range(len(self._channels)):
            number = (self._current + step) % len(self._channels)
            if self._channels[number].get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                self._current = number
                return number, self._channels[number]
        return None

    async def look(self, timeout_s: float | None) -> bool:
        """Waits until a member is connected, or `stop` is called; returns False after `timeout_s`. One search serves all waiting calls."""
        if not self._stopped:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look(), name="etcd: looking for a member")
            done, _ = await asyncio.wait([self._looking], timeout=timeout_s)
            return bool(done)
        return True

    def turn_away(self, number: int) -> None:
        """Uses another connected member from now on, if there is one, because the one with this number failed."""
        if self._current == number:
            self._current = (number + 1) % len(self._channels)

    async def why(self) -> str:
        """Returns, as text for people, the answer of each member that is not connected."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_all(), name="etcd: asking why")
        await asyncio.wait([self._asking])
        return "nothing, it was closed" if self._asking.cancelled() else self._asking.result()

    def stop(self) -> None:
        """Ends every wait for a member."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()

    async def close(self) -> None:
        """Ends all tasks and closes the channels. Idempotent."""
        self.stop()
        tasks = [task for task in (self._looking, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _look(self) -> None:
        waiting = [asyncio.create_task(_until_ready(channel)) for channel in self._channels]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask_all(self) -> str:
        return "; ".join(await asyncio.gather(*map(self._ask, range(len(self._channels)))))

    async def _ask(self, number: int) -> str:
        address, channel = self.addresses[number], self._channels[number]
        if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return f"{address} is connected"
        call = channel.unary_unary(RANGE.path, **RANGE.serializers())
        try:
            await call(rpc.RangeRequest(key=b"\0", count_only=True), timeout=_WHY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"{address}: {error.details()}"
            return f"{address}: no connection within {_WHY_TIMEOUT_S} s"
        return f"{address} is connected"


@functools.cache
def _keep_poller() -> None:
    """Keeps gRPC's asyncio poller from the first channel of the process to the end of the process.

    The poller counts channels, and the last one to be collected ends it by joining its thread wherever the garbage collector runs: on any
    loop, perhaps in the middle of an unrelated call.
    """
    grpc.aio.init_grpc_aio()


async def _until_ready(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
