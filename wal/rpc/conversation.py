"""Requests as a server gets them: parsed one by one, and as a stream, a `Conversation`.

gRPC ends a call with INTERNAL when it cannot parse a request, so handlers get bytes and parse them here. Parsing keeps the loop: the fields
of a large request are counted first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.rpc.frame_pages import fields_in
from wal.runtime.tasks import end_tasks, retrieve

COUNTED_BYTES: Final = 256 * 1024
"""The size above which the fields of a request are counted before it is parsed."""
ENTRIES_MAX: Final = 262_144
"""The most fields of a request, in all its messages: more than the 65,536 names of a cursor with their incarnations have."""
_ENTRIES_A_TURN: Final = 8192


class Conversation:
    """The part of a call's context that the handler of a stream uses. Reads must not overlap."""

    def __init__(self, context: Any, parse: Callable[[bytes], Awaitable[Any]]) -> None:
        self.invocation_metadata: Callable[[], Any] = context.invocation_metadata
        self.write: Callable[[Any], Awaitable[None]] = context.write
        self._context = context
        self._read = context.read
        self._parse = parse
        self._reader: asyncio.Task[Any] | None = None
        """The task whose read is under way."""
        self._ended = False

    def room(self, size: int) -> contextlib.AbstractAsyncContextManager[None]:
        """A block in which the call has room for this many bytes of answers. Waits for the room; raises WouldBlockError if none becomes
        free.
        """
        block: contextlib.AbstractAsyncContextManager[None] = self._context.room(size)
        return block

    async def read(self) -> Any:
        """Returns the next request, or EOF, also when a reader was ended. Raises InvalidArgumentError for an invalid request. End a task
        that may wait here with `end`. Only a stopping node cancels such a task.
        """
        if self._ended:
            return grpc.aio.EOF
        self._reader = asyncio.current_task()
        try:
            data = await self._read()
        finally:
            self._reader = None
        return grpc.aio.EOF if data is grpc.aio.EOF or self._ended else await self._parse(data)

    async def end(self, reader: asyncio.Task[Any]) -> None:
        """Ends a task that reads: when this returns, it gets no request any more, and does nothing else. Its error is of no interest.

        A read that is under way is not cancelled. It gets EOF when the call ends, and the task ends then: gRPC for Python never frees a
        request that arrives for a read that was cancelled (https://github.com/grpc/grpc/issues/43360), and clients may send some on
        streams that end.
        """
        self._ended = True
        reader.add_done_callback(retrieve)
        if reader is not self._reader:
            await end_tasks(reader)


def parser(method: Method[Any, Any]) -> Callable[[bytes], Awaitable[Any]]:
    """Returns the function that parses the requests of a method. It raises InvalidArgumentError for bytes that are not a request."""
    from_string, kind = method.request.FromString, method.request.DESCRIPTOR

    async def parse(data: bytes) -> Any:
        try:
            if len(data) > COUNTED_BYTES:
                await _check_entries(method, kind, data)
            return from_string(data)
        except (DecodeError, IndexError) as error:
            raise InvalidArgumentError(
                f"a request of {method.path} has {len(data)} bytes that cannot be parsed ({error}): send the message "
                f"{method.request.DESCRIPTOR.name}"
            ) from error

    return parse


async def _check_entries(method: Method[Any, Any], kind: Any, data: bytes) -> None:
    """Raises InvalidArgumentError for a request with more than `ENTRIES_MAX` fields, DecodeError for an invalid encoding.

    Parsing keeps the loop, and takes 40 ns for each field: millions of empty names fit a request.
    """
    entries = 0
    waiting = [(kind, 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        for number, _, first, last in fields_in(data, start, end):
            entries += 1
            if entries > ENTRIES_MAX:
                raise InvalidArgumentError(
                    f"a request of {method.path} has more than {ENTRIES_MAX} fields in its {len(data)} bytes: send several smaller ones"
                )
            if entries % _ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
            field = kind.fields_by_number.get(number)
            if first < last and field is not None and field.message_type is not None:
                waiting.append((field.message_type, first, last))
