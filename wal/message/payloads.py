"""PayloadType: the type of the values in payloads, with its codec, its version, and the conversion of older versions.

Owns: encoding a value to bytes and properties, and decoding a message to a value. The version travels in the property `payload_version`; a
message without it has version 1, so a vchannel can become typed after messages were written. Decoding either returns a value of the type or
raises a PayloadError that has the message: it never skips a message, and never guesses. Pure.

A value of an older version is decoded without a type, goes through `upcast[version]`, then that of the next version, up to this one, and is
then checked against the type. A version above this one, or a version without an upcast, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

import msgspec

from wal.errors import InvalidArgumentError, PayloadError
from wal.message.message import ImmutableMessage
from wal.runtime.user_code import described

VERSION_PROPERTY: Final = "payload_version"
"""The property that has the version of a payload's type, a decimal number."""

T = TypeVar("T")
Upcast = Callable[[Any], Any]
"""Takes the decoded value of one version, and returns that of the next one."""


class Codec(Protocol[T]):
    """A codec turns values into payloads and back. It may raise any exception for a payload that it cannot decode."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, payload: bytes) -> T: ...

    def decode_raw(self, payload: bytes) -> Any:
        """Returns the content of an older payload, for the first upcast: lists and dicts, or the bytes themselves."""

    def convert(self, raw: Any) -> T:
        """Turns the result of the last upcast into a value."""


CodecOption = Literal["json", "msgpack"] | Codec[T] | tuple[Callable[[T], bytes], Callable[[bytes], T]]
"""A codec as callers give it; a pair is (encode, decode), and its upcasts take and return bytes."""


class PayloadType(Generic[T]):
    """The type of the payloads of a vchannel."""

    def __init__(
        self, kind: type[T], *, codec: CodecOption[T] | None = None, version: int = 1, upcast: Mapping[int, Upcast] | None = None
    ) -> None:
        """Raises TypeError for a type without a codec, and InvalidArgumentError for a gap in `upcast`."""
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError(f"version must be an int, not {version!r}")
        if version < 1:
            raise InvalidArgumentError(f"version={version}: the first version of a type is 1")
        self.kind = kind
        self.version = version
        self._codec: Codec[T] = _codec(kind, codec)
        self._upcasts = _checked_upcasts(upcast or {}, version)
        self._properties = {VERSION_PROPERTY: str(version)}

    def encode(self, value: T) -> tuple[bytes, dict[str, str]]:
        """Returns the payload of a value and the properties to append with it. Raises TypeError for a value of another type."""
        if isinstance(self.kind, type) and not isinstance(value, self.kind):
            raise TypeError(f"a value of type {self.kind.__name__} is appended here, not {type(value).__name__}")
        payload = self._codec.encode(value)
        if not isinstance(payload, bytes):
            raise TypeError(f"the codec of {self} encodes to bytes, not {type(payload).__name__}")
        return payload, dict(self._properties)

    def decode(self, message: ImmutableMessage) -> T:
        """Returns the value of a plain message or a body. Raises PayloadError, with the message, if its payload is not of this type."""
        version = self._version_of(message)
        try:
            if version == self.version:
                return self._codec.decode(message.payload)
            raw = self._codec.decode_raw(message.payload)
            for older in range(version, self.version):
                raw = self._upcasts[older](raw)
            return self._codec.convert(raw)
        except Exception as error:
            raise PayloadError(
                f"message {message.message_id} of {message.vchannel!r} has no {self} of version {version} in its {len(message.payload)} "
                f"bytes: {described(error)}",
                message=message,
            ) from error

    def _version_of(self, message: ImmutableMessage) -> int:
        text = message.properties.get(VERSION_PROPERTY, "1")
        version = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if version == self.version or version in self._upcasts:
            return version
        names = ", ".join(map(str, (*self._upcasts, self.version)))
        raise PayloadError(
            f"message {message.message_id} of {message.vchannel!r} has version {text!r} of {self}, and known here are {names}: update this "
            "process if the version is newer, else give upcast= a function for it",
            message=message,
        )

    def __str__(self) -> str:
        return getattr(self.kind, "__name__", None) or str(self.kind)

    def __repr__(self) -> str:
        return f"PayloadType({self}, version={self.version})"


def _checked_upcasts(upcast: Mapping[int, Upcast], version: int) -> dict[int, Upcast]:
    for older, function in upcast.items():
        if not isinstance(older, int) or isinstance(older, bool) or not callable(function):
            raise TypeError(f"upcast maps a version (int) to a function, not {older!r} to {function!r}")
        if not 1 <= older < version:
            raise InvalidArgumentError(f"upcast has a function for version {older}: with version={version} they are for 1 to {version - 1}")
    oldest = min(upcast, default=version)
    missing = [older for older in range(oldest, version) if older not in upcast]
    if missing:
        raise InvalidArgumentError(
            f"upcast has functions for {sorted(upcast)}, and none for {missing}: each leads to the next version, up to {version}"
        )
    return {older: upcast[older] for older in range(oldest, version)}


class _Builtins(Generic[T]):
    """JSON or MessagePack by msgspec: its structs, dataclasses, and Python's own types."""

    def __init__(self, kind: type[T], room: Any) -> None:
        self._kind = kind
        try:
            custom = isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
            self.encode: Callable[[T], bytes] = room.Encoder().encode
            self.decode: Callable[[bytes], T] = room.Decoder(kind).decode
            self.decode_raw: Callable[[bytes], Any] = room.Decoder().decode
        except TypeError as error:
            raise TypeError(f"{kind!r} has no codec: {error}; {_REMEDY}") from error
        if custom:
            raise TypeError(f"{kind!r} has no codec; {_REMEDY}")

    def convert(self, raw: Any) -> T:
        return msgspec.convert(raw, self._kind)


_REMEDY: Final = "use a msgspec.Struct, a dataclass, a builtin type or a pydantic model, or give codec=(encode, decode)"


class _Model(Generic[T]):
    """JSON by the methods of a pydantic model."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.decode: Callable[[bytes], T] = kind.model_validate_json
        self.decode_raw: Callable[[bytes], Any] = msgspec.json.decode

    def encode(self, value: Any) -> bytes:
        return cast("str", value.model_dump_json()).encode()

    def convert(self, raw: Any) -> T:
        return cast("T", self._kind.model_validate(raw))


class _Functions(Generic[T]):
    """A pair of functions; older payloads are bytes for the upcasts."""

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self.encode, self.decode, self.convert = encode, decode, decode

    def decode_raw(self, payload: bytes) -> Any:
        return payload


def _codec(kind: Any, codec: Any) -> Codec[Any]:
    if codec is None and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json"):
        return _Model(kind)
    if codec is None or codec == "json":
        return _Builtins(kind, msgspec.json)
    if codec == "msgpack":
        return _Builtins(kind, msgspec.msgpack)
    if isinstance(codec, tuple) and len(codec) == 2 and all(map(callable, codec)):
        return _Functions(*codec)
    if all(callable(getattr(codec, name, None)) for name in ("encode", "decode", "decode_raw", "convert")):
        return cast("Codec[Any]", codec)
    if isinstance(codec, str):
        raise InvalidArgumentError(f"codec={codec!r} is not known: 'json', 'msgpack', (encode, decode), or a Codec")
    raise TypeError(f"codec must be 'json', 'msgpack', (encode, decode), or a Codec, not {codec!r}")
