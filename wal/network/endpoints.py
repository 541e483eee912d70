"""Endpoints: a channel to each of several equivalent servers, called members, and the choice of one for calls.

Owns: the channels, and the one task that looks for a member while none is connected. It returns only connected channels, so a call that
gets no channel has certainly not been sent. gRPC reconnects by itself, every half second. Its only own call, the probe, finds the reason
why a member cannot be reached.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
import grpc.aio

from wal.runtime.backoff import Backoff

_OPTIONS: Final[list[tuple[str, Any]]] = [
    # An answer may be larger than gRPC's default of 4 MiB: a transaction of etcd reads 128 values of up to 1.5 MiB, and frames have 4.5.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A connection without calls is not pinged: servers end such connections (too_many_pings).
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own back-off grows to two minutes. With this one a restarted server is found within 0.6 s: gRPC varies a pause by a fifth.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # the time limit of one attempt, in spite of its name
    # A name is resolved again after half a second, not after 30: a restarted server may have another address.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.service_config_disable_resolution", 1),  # no DNS query for settings of a service
    ("grpc.enable_http_proxy", 0),  # calls go to the server, not through a proxy that a shell happens to configure
    ("grpc.use_local_subchannel_pool", 1),  # closing one client must not close another's connection
]
PING_S: Final = 10.0
"""The silence in seconds after which a connection with calls is pinged: etcd ends connections that are pinged more often than every 5 s."""
served_by: Final[dict[str, int]] = {}
"""The addresses at which this process serves, each with the process id. A fork copies the dict, but does not serve there."""
LEFT_S: Final = 7.0
"""How long a stopping member gets no new calls while it stays connected: longer than the member waits for calls under way."""
_WHY_TIMEOUT_S: Final = 1.0
_PAUSE_FIRST_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.02
"""The pauses between two looks at the channels while none is connected; connecting over loopback takes about 2 ms."""


class Endpoints:
    """The members by `host:port`. A member that answered is used until it fails."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        credentials: grpc.ChannelCredentials | None,
        probe: tuple[Method[Any, Any], object],
        ping_s: float = PING_S,
    ) -> None:
        """`probe` is a call that every member answers, and its request; any status but a timeout is the reason why a member is unreachable.

        Pings find a member that is frozen, or cut off by a broken cable: after `ping_s` of silence, when no answer came for half of it.
        """
        _keep_poller()
        self._probe = probe
        self._options = [*_OPTIONS, *ping_options(ping_s)]
        self._credentials = credentials
        self.addresses: tuple[str, ...] = tuple(addresses)
        self._channels = list(map(self._channel, addresses))
        self._current = 0
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[list[str]] | None = None
        self._left: dict[int, float] = {}
        """The stopping members, and the time until which each gets no new calls while it stays connected."""
        self.stopped: bool = False
        """Whether waiting for members has ended."""
        self._closed = False

    def connected(self) -> tuple[int, grpc.aio.Channel] | None:
        """Returns the number and channel of a connected member, or None."""
        for step in range(0 if self._closed else len(self._channels)):
            number = (self._current + step) % len(self._channels)
            if self._channels[number].get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
                self._left.pop(number, None)
            elif not self._is_left(number):
                self._current = number
                return number, self._channels[number]
        return None

    async def look(self, timeout_s: float | None) -> bool:
        """Waits until a member is connected, or `stop` is called; returns False after `timeout_s`. One search serves all waiting calls."""
        if not self.stopped:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look(), name="looking for a member")
            done, _ = await asyncio.wait([self._looking], timeout=timeout_s)
            for looking in done:
                if not looking.cancelled():
                    looking.result()
            return bool(done)
        return True

    def turn_away(self, number: int) -> None:
        """Uses another connected member from now on, if there is one, because the one with this number failed."""
        if self._current == number:
            self._current = (number + 1) % len(self._channels)

    def follow(self, number: int, address: str) -> None:
        """Uses the member at this address from now on, as member `number` asked; empty: any other member. A new address is added."""
        if not address:
            self.turn_away(number)
        elif self._current == number and not self._closed:
            self.add(address)
            self._current = self.addresses.index(address)

    def add(self, address: str) -> None:
        """Adds a member, unless it is already one."""
        if address not in self.addresses and not self._closed:
            self.addresses = (*self.addresses, address)
            self._channels.append(self._channel(address))

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._credentials, options=self._options)

    def leave(self, number: int) -> None:
        """Sends no new calls to this member until it has reconnected, because it is stopping."""
        self._left.setdefault(number, asyncio.get_running_loop().time() + LEFT_S)

    def _is_left(self, number: int) -> bool:
        until = self._left.get(number, 0.0)
        return until > 0.0 and asyncio.get_running_loop().time() < until

    async def why(self) -> list[str]:
        """Returns, as texts for people, what each unconnected member answered, or why it did not answer."""
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.get_running_loop().create_task(self._ask_all(), name="asking members why")
        # `_asking` may be a newer task after the wait: another caller began it in the same turn of the loop.
        await asyncio.wait([asking])
        return ["nothing, it was closed"] if asking.cancelled() else asking.result()

    def stop(self) -> None:
        """Ends every wait for a member."""
        self.stopped = True
        if self._looking is not None:
            self._looking.cancel()

    async def close(self) -> None:
        """Ends all tasks and closes the channels. Idempotent."""
        self.stop()
        self._closed = True
        tasks = [task for task in (self._looking, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _look(self) -> None:
        # gRPC's wait for a change of state cannot be ended: it keeps a closed channel alive, which then connects again and again for ever,
        # and is answered in a loop that may have ended. Looking costs 2 us for each member.
        backoff = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        while self.connected() is None:
            pause_s = backoff.next()
            await asyncio.sleep(pause_s)

    async def _ask_all(self) -> list[str]:
        return await asyncio.gather(*map(self._ask, range(len(self._channels))))

    async def _ask(self, number: int) -> str:
        address, channel = self.addresses[number], self._channels[number]
        if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return f"{address} is {'stopping' if self._is_left(number) else 'connected'}"
        method, request = self._probe
        call = channel.unary_unary(method.path, **method.serializers())
        try:
            await call(request, timeout=_WHY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"{address}: {error.details()}"
            return f"{address}: no connection within {_WHY_TIMEOUT_S} s"
        return f"{address} is connected"


def ping_options(ping_s: float) -> list[tuple[str, Any]]:
    """Returns the options of a client or a server that pings after `ping_s` of silence, and gives up after half of it without an answer."""
    return [
        ("grpc.keepalive_time_ms", round(ping_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(ping_s * 500)),
        ("grpc.http2.ping_timeout_ms", round(ping_s * 500)),  # decides in grpcio 1.76 to 1.85
    ]


@functools.cache
def _keep_poller() -> None:
    """Keeps gRPC's asyncio poller from the first channel of the process to the end of the process.

    The poller counts channels, and the last one to be collected ends it by joining its thread wherever the garbage collector runs: on any
    loop, perhaps in the middle of an unrelated call.
    """
    grpc.aio.init_grpc_aio()


Request = TypeVar("Request")
Response = TypeVar("Response")


class Method(NamedTuple, Generic[Request, Response]):
    """A method of a service: `path` is its name in gRPC, `request` and `response` are its types.

    It replaces the stubs that grpcio-tools would generate.
    """

    path: str
    request: type[Request]
    response: type[Response]

    def serializers(self) -> dict[str, Any]:
        """Returns the two functions that a client's channel needs."""
        request, response = self.request, self.response
        return {
            "request_serializer": request.SerializeToString,  # type: ignore[attr-defined]
            "response_deserializer": response.FromString,  # type: ignore[attr-defined]
        }
