"""Exchanges: one request, or one stream of requests, and what the server answers.

Every answer is judged: an error is an error of `wal.errors` with a text, or a status of gRPC's own that no handler can replace. Nothing
may take longer than DEADLINE_S.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from wal.errors import UnknownError, WALError
from wal.message import MessageID
from wal.network import Method
from wal.requests.broadcasts import AppendedCopies
from wal.rpc.api import append_pb2, requests_pb2
from wal.rpc.appends import outcomes_from_proto
from wal.rpc.codes import error_from_proto, error_in
from wal.rpc.methods import WATCH_VCHANNELS

DEADLINE_S: Final = 30.0
"""The bound of each exchange: far more than one takes on a busy machine."""
RESPONSES_MAX: Final = 200
"""The most responses that are read of a stream."""
LOST: Final = "Internal error from Core"
"""The text of the error when the other side ended a call during a write; the status is lost then."""
_OWN: Final = {grpc.StatusCode.RESOURCE_EXHAUSTED: ("larger than max", "metadata size exceeds"), grpc.StatusCode.INTERNAL: (LOST,)}
"""The statuses that gRPC makes by itself, with what they say."""
_CUT: Final = 160

Metadata = Sequence[tuple[str, str | bytes]]


class Answer:
    """An answer: the ids of the messages that were written, the transactions that were begun, and the error that ended the call."""

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self.begun: list[append_pb2.BegunTxn] = []
        self.error: WALError | None = None
        self.complete = True
        """Whether every request was answered."""


class Exchanges:
    """The exchanges over one channel. `defects` are the answers that no server may give."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.defects: list[str] = []
        self.seen: Counter[str] = Counter()
        """How often each class of error came."""
        self.samples: dict[str, str] = {}
        """One text for each kind of error, to look at."""
        self.slowest_s = 0.0
        self._channel = channel

    async def ask(self, method: Method[Any, Any], data: bytes, what: str, *, streams: bool, cancel: bool) -> Answer:
        """Sends one request of a call with one request."""
        answer, began = Answer(), time.monotonic()
        kind = self._channel.unary_stream if streams else self._channel.unary_unary
        call: Any = kind(method.path, response_deserializer=method.response.FromString)(data, timeout=DEADLINE_S)
        if cancel:
            call.cancel()
            answer.complete = False
            return answer
        try:
            if not streams:
                self._take(await call, answer, what)
            else:
                count = 0
                async for _ in call:
                    count += 1
                    if method is WATCH_VCHANNELS or count == RESPONSES_MAX:
                        break
                call.cancel()
        except grpc.aio.AioRpcError as error:
            answer.error = self._judged(error, what)
            answer.complete = answer.error is not None and not answer.error.outcome_unknown
        self._took(time.monotonic() - began, what)
        return answer

    async def converse(self, method: Method[Any, Any], metadata: Metadata, requests: Sequence[bytes], what: str, *, cancel: bool) -> Answer:
        """Sends the requests of a stream, and reads to its end; with `cancel` it is cancelled after the last one."""
        answer, began = Answer(), time.monotonic()
        stub = self._channel.stream_stream(method.path, response_deserializer=method.response.FromString)
        call: Any = stub(metadata=metadata)
        try:
            async with asyncio.timeout(DEADLINE_S):
                if await self._write(call, requests) and cancel:
                    answer.complete = False
                    return answer
                await self._read(call, answer, what)
        except TimeoutError:
            answer.complete = False
            self.defects.append(f"{what}: no end after {DEADLINE_S} s")
        finally:
            call.cancel()
        self._took(time.monotonic() - began, what)
        return answer

    async def _write(self, call: Any, requests: Sequence[bytes]) -> bool:
        """Sends requests, and ends the stream; returns False if the stream ended before."""
        try:
            for data in requests:
                await call.write(data)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def _read(self, call: Any, answer: Answer, what: str) -> None:
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._take(response, answer, what)
            if await call.code() is not grpc.StatusCode.OK:
                code, text = await call.code(), await call.details()
                raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), await call.trailing_metadata(), text)
        except grpc.aio.AioRpcError as error:
            answer.error = self._judged(error, what)
            answer.complete = False  # what followed the wrong request was not looked at, or not answered

    def _take(self, response: Any, answer: Answer, what: str) -> None:
        """Notes what a response acknowledges, and judges the errors in it."""
        if isinstance(response, requests_pb2.SubmitResponse):
            for copies in response.append_broadcast.value.copies:
                appended = AppendedCopies(copies.count, MessageID.from_bytes(copies.first_id), copies.first_time_tick)
                answer.ids |= {bytes(result.message_id) for result in appended.results()}
            answer.ids |= {response.schedule_message.value.appended.first_id} - {b""}  # its time had passed
            return
        name = response.WhichOneof("response") if "response" in response.DESCRIPTOR.oneofs_by_name else None
        if name == "outcomes":
            for _, outcome in outcomes_from_proto(response.outcomes):
                if isinstance(outcome, BaseException):
                    self._judge(outcome, what)
                elif outcome.message_id is not None:
                    answer.ids.add(bytes(outcome.message_id))
            answer.begun.extend(begun.txn for begun in response.outcomes.begun)
        elif name == "produce":
            if response.produce.HasField("error"):
                self._judge(error_from_proto(response.produce.error), what)
            elif response.produce.result.HasField("id"):
                answer.ids.add(response.produce.result.id.id)

    def _judged(self, error: grpc.aio.AioRpcError, what: str) -> WALError | None:
        """Returns the error that a call ended with; records an error with too little text as a defect."""
        told = error_in(error)
        if told is not None:
            self._judge(told, what)
            if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                self.defects.append(f"{what}: {error.code().name}: {error.details()}")
        elif not any(words in (error.details() or "") for words in _OWN.get(error.code(), ())):
            self.defects.append(f"{what}: no StreamingError: {error.code().name}: {error.details()}")
        else:
            self.seen[f"{error.code().name} by gRPC"] += 1
        return told

    def _judge(self, error: BaseException, what: str) -> None:
        text, name = str(error), type(error).__name__
        self.seen[name] += 1
        self.samples.setdefault(name + " " + "".join(one for one in text if one.isalpha() or one == " ")[:40], text)
        if not isinstance(error, WALError) or isinstance(error, UnknownError):
            self.defects.append(f"{what}: {name}: {text}")
        elif len(text) < 20 or ":" not in text:
            self.defects.append(f"{what}: the text names no remedy: {name}: {text}")

    def _took(self, seconds: float, what: str) -> None:
        self.slowest_s = max(self.slowest_s, seconds)
        if seconds >= DEADLINE_S:
            self.defects.append(f"{what}: it took {seconds:.1f} s"[:_CUT])
