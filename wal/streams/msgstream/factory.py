"""Factories of streams: one for each medium, with the parameters of all its streams.

A medium is imported when its factory creates a stream, since some media need packages of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from wal.errors import InvalidArgumentError
from wal.runtime.async_only import import_late
from wal.streams.msgstream.stream import MsgStream
from wal.streams.msgstream.tt_stream import TtMsgStream


class MsgStreamFactory(Protocol):
    """Creates streams: `async with await factory.new_msg_stream() as stream`."""

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Sets parameters by name, all or none; others keep their values."""
        ...

    async def new_msg_stream(self) -> MsgStream:
        """Returns a new stream without time ticks."""
        ...

    async def new_tt_msg_stream(self) -> TtMsgStream:
        """Returns a new stream with time ticks."""
        ...


class _Factory:
    """The base of the factories.

    Each has the parameters `buffer_size`, `on_refused` and `auto_ack`, as in MsgStream; `tick_bytes_max`, as in TtMsgStream; and
    `dispatcher_factory`, an UnmarshalDispatcherFactory that makes a dispatcher for each stream. Each also has a required parameter with the
    location of the channels.
    """

    _module: ClassVar[str]
    """The module of the stream classes, which are `_prefix` and MsgStream or TtMsgStream."""
    _prefix: ClassVar[str]
    _location: ClassVar[str]
    _of_all: ClassVar[frozenset[str]] = frozenset({"auto_ack", "buffer_size", "dispatcher_factory", "on_refused"})
    _of_tt: ClassVar[frozenset[str]] = frozenset({"tick_bytes_max"})

    def __init__(self) -> None:
        self._params: dict[str, Any] = {}

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Sets parameters by name, all or none; others keep their values. The streams check the values when they are created.

        Raises InvalidArgumentError, with the accepted names, for an unknown one.
        """
        if not isinstance(params, Mapping):
            raise TypeError(f"params must be a mapping from names to values, not {params!r}")
        names = {self._location, *self._of_all, *self._of_tt}
        for name in params:
            if name not in names:
                raise InvalidArgumentError(f"unknown parameter {name!r}: use {', '.join(sorted(names))}")
        self._params.update(params)

    async def new_msg_stream(self) -> MsgStream:
        """Returns a new stream without time ticks; raises ImportError if the medium needs a package that is not installed."""
        stream: MsgStream = await self._new("MsgStream", self._of_all)
        return stream

    async def new_tt_msg_stream(self) -> TtMsgStream:
        """Returns a new stream with time ticks; raises as `new_msg_stream` does."""
        stream: TtMsgStream = await self._new("TtMsgStream", self._of_all | self._of_tt)
        return stream

    async def _new(self, kind: str, names: frozenset[str]) -> Any:
        await import_late(self._module)
        params = self._params
        if self._location not in params:
            raise InvalidArgumentError(f"the parameter {self._location!r} is missing: set_params() sets it")
        settings = {name: value for name, value in params.items() if name in names}
        if (dispatchers := settings.pop("dispatcher_factory", None)) is not None:
            settings["dispatcher"] = dispatchers.new_unmarshal_dispatcher()
        return getattr(sys.modules[self._module], self._prefix + kind)(params[self._location], **settings)


class PulsarMsgStreamFactory(_Factory):
    """Creates streams over Pulsar; `address` as in PulsarMedium."""

    _module = "wal.streams.msgstream.media.pulsar"
    _prefix = "Pulsar"
    _location = "address"


class RmqMsgStreamFactory(_Factory):
    """Creates streams over RocksMQ; `path` is its directory, or an open RocksMQ, and `settings` a RocksMQSettings.

    All streams of a process share the RocksMQ of a directory.
    """

    _module = "wal.streams.msgstream.media.rocksmq"
    _prefix = "Rmq"
    _location = "path"
    _of_all = _Factory._of_all | {"settings"}


class WalMsgStreamFactory(_Factory):
    """Creates streams over an open log, the parameter `log`; `tick_interval_s` as in WalMedium."""

    _module = "wal.streams.msgstream.media.wal"
    _prefix = "Wal"
    _location = "log"
    _of_tt = _Factory._of_tt | {"tick_interval_s"}


class MemoryMsgStreamFactory(_Factory):
    """Creates streams over a MemoryMedium, the parameter `medium`, which its owner closes."""

    _module = "wal.streams.msgstream.tt_stream"
    _prefix = ""
    _location = "medium"
