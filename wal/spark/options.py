"""SourceOptions: the options of a Spark read, checked once. Pure.

Owns the names of the options (Kafka's, where it has them), their forms and their defaults, and the choice of vchannels. An unknown name or
an invalid value raises an InvalidArgumentError that lists the accepted ones: a misspelt option never means "the default".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import MessageID, MessageType, type_properties
from wal.message.matching import Matching
from wal.read.cursors.cursor import check_cursor
from wal.spark.location import LOCATION_OPTIONS, SparkLocation, only_one
from wal.spark.offsets import PChannelOffset, StreamOffset, parse_pchannel_offset
from wal.timestamp.timestamp import LOGICAL_BITS

_T = TypeVar("_T")

OPTIONS: Final = (
    *LOCATION_OPTIONS,
    "vchannels",
    "vchannelsPattern",
    "startingCursor",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "startingTimeTick",
    "endingTimeTick",
    "tickTimeoutMs",
    "maxMessagesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxPartitions",
    "failOnDataLoss",
    "includeTypes",
    "pushFilters",
)
"""Case does not matter. `maxOffsetsPerTrigger` is another name for `maxMessagesPerTrigger`."""
TICK_TIMEOUT_MS: Final = 30_000
"""The default of the time that a read waits for a tick."""

_PATTERN_CHARACTERS: Final = frozenset("*?")
"""With one of these characters in it, a single name is the pattern of a family; in a JSON list it is a name."""
_DIGITS_MAX: Final = 19
"""The maximum number of digits in a numeric option."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Edge = str | Mapping[str, PChannelOffset | str]
"""The beginning or end of a read: "earliest", "latest", or a mapping from pchannels to one of these or a position."""


class ChannelChoice(msgspec.Struct, frozen=True):
    """The vchannels that a read selects: those with these `names`, those whose whole name matches `pattern`, a regular expression, those of
    a `family`, or all.

    Each name is matched once and cached: there may be 65,536 names, and a stream checks them sixty times a second.
    """

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    family: Matching | None = None

    @classmethod
    def matching(cls, pattern: str | Matching | None, names: tuple[str, ...] | None = None) -> ChannelChoice:
        """Returns the choice of these names, and of a regular expression or a family."""
        return cls(names, family=pattern) if isinstance(pattern, Matching) else cls(names, pattern)

    @property
    def everything(self) -> bool:
        """True if the read selects every vchannel."""
        return self.names is None and self.pattern is None and self.family is None

    def __contains__(self, name: object) -> bool:
        if self.names is not None:
            return name in self.names
        if self.family is not None:
            return name in self.family
        return self.pattern is None or (isinstance(name, str) and _matches(self.pattern, name))

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the selected ones of these names."""
        return frozenset(name for name in names if name in self)

    def __str__(self) -> str:
        if self.names is not None:
            return ", ".join(map(repr, self.names))
        if self.family is not None:
            return f"{self.family}"
        return "all vchannels" if self.pattern is None else f"vchannels that match {self.pattern!r}"


class SourceOptions(msgspec.Struct, frozen=True):
    """The options of one read, see docs/reference/spark.md."""

    location: SparkLocation
    channels: ChannelChoice
    starting: Edge
    starting_cursor: str | None = None
    """The cursor of the family at which the read begins, if it is saved; otherwise it begins at `starting` or `starting_tick`."""
    starting_tick: int | None = None
    """Events below this tick are not read."""
    ending: Edge = LATEST
    ending_tick: int | None = None
    tick_timeout_s: float = TICK_TIMEOUT_MS / 1000
    rows_max: int | None = None
    bytes_max: int | None = None
    partitions_max: int | None = None
    fail_on_data_loss: bool = True
    types: frozenset[int] | None = None
    push_filters: bool = False
    """Whether the source applies filters of the query itself. Spark up to 4.3 keeps a filtered plan for all queries of a loaded DataFrame,
    so only a user who loads once per filter asks for it.
    """

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Returns the checked options of a stream or a batch read, from Spark's own mapping."""
        source_options = _Given(options)
        source_options.check_names()
        starts = only_one(source_options.options, "startingOffsets", "startingTimestamp", "startingTimeTick")
        starting: Edge = LATEST if streaming else EARLIEST
        starting_tick = None
        if starts == "startingOffsets":
            starting = source_options.take(starts, _edge, starting)
        elif starts is not None:
            starting, starting_tick = (EARLIEST, source_options.take(starts, _timestamp if starts == "startingTimestamp" else _tick, 0))
        ends = only_one(source_options.options, "endingOffsets", "endingTimeTick")
        if streaming and ends is not None:
            raise InvalidArgumentError(f"{ends} names the end of a batch read, and a stream has no end: leave it out")
        if not streaming and starting == LATEST:
            raise InvalidArgumentError(
                "startingOffsets=latest leaves a batch read nothing to read: use earliest, or JSON with a position for each pchannel"
            )
        push_filters = source_options.take("pushFilters", _truth, False)
        if streaming and push_filters:
            raise InvalidArgumentError(
                "pushFilters=true is for batch reads, since Spark pushes no filter into a stream: use vchannels, includeTypes or "
                "startingTimestamp"
            )
        ending = source_options.take("endingOffsets", _edge, LATEST)
        if ending == EARLIEST:
            raise InvalidArgumentError(
                "endingOffsets=earliest leaves nothing to read: use latest, or JSON with a position for each pchannel"
            )
        rows = only_one(source_options.options, "maxMessagesPerTrigger", "maxOffsetsPerTrigger") or "maxMessagesPerTrigger"
        channels = source_options.channels()
        cursor = source_options.take("startingCursor", lambda _, value: check_cursor(value), None)
        if cursor is not None and channels.family is None:
            raise InvalidArgumentError(
                f"startingCursor={cursor!r} is the cursor of a family, and this is a read of {channels}: give a pattern with it, such as "
                "vchannels=account-*"
            )
        return cls(
            SparkLocation.of(source_options.options),
            channels,
            starting,
            cursor,
            starting_tick,
            ending,
            source_options.take("endingTimeTick", _tick, None),
            source_options.take("tickTimeoutMs", _from_zero, TICK_TIMEOUT_MS) / 1000,
            source_options.take(rows, _positive, None),
            source_options.take("maxBytesPerTrigger", _positive, None),
            source_options.take("maxPartitions", _positive, None),
            source_options.take("failOnDataLoss", _truth, True),
            source_options.take("includeTypes", _types, None),
            push_filters,
        )


class _Given:
    """The raw options, by their names in lower case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = {name.lower(): value for name, value in options.items()}

    def check_names(self) -> None:
        names = {name.lower() for name in OPTIONS}
        for name in self.options:
            if name == "paths":
                raise InvalidArgumentError("load() was given several paths: give it one, because a read has one log")
            if name not in names and not name.startswith("spark."):
                raise InvalidArgumentError(f"{name!r} is not an option of the format 'wal', which takes {', '.join(OPTIONS)}")

    def take(self, name: str, parse: Callable[[str, str], _T], default: _T | Any) -> Any:
        value = self.options.get(name.lower())
        return default if value is None else parse(name, value.strip())

    def channels(self) -> ChannelChoice:
        kind = only_one(self.options, "vchannels", "vchannelsPattern")
        if kind == "vchannels":
            text = self.options[kind].strip()
            if not _PATTERN_CHARACTERS.isdisjoint(text) and not text.startswith("[") and "," not in text:
                return ChannelChoice(family=Matching(text))
            return ChannelChoice(names=self.take(kind, _names, ()))
        return ChannelChoice(pattern=self.take("vchannelsPattern", _pattern, None))


def _names(option: str, value: str) -> tuple[str, ...]:
    names: Any = value.split(",")
    if value.startswith("["):
        try:
            names = json.loads(value)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(f'{option}={value!r} is not a JSON list of names: write a,b,c or ["a", "b", "c"]')
    else:
        names = [name.strip() for name in names]
    unique_names: tuple[str, ...] = tuple(dict.fromkeys(names))
    if not unique_names or not all(unique_names):
        raise InvalidArgumentError(f'{option}={value!r} holds an empty name: write a,b,c or ["a", "b", "c"]')
    return unique_names


def _pattern(option: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidArgumentError(
            f"{option}={value!r} is not a regular expression of Python: {error}; it is matched on whole names"
        ) from error
    return value


def _edge(option: str, value: str) -> Edge:
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    form = (
        f"{EARLIEST}, {LATEST}, the JSON of an offset as a query's progress shows it, or "
        f'{{"pchannel": {EARLIEST} or {LATEST} or a message id or {{"id": message id, "tick": time tick}}, …}}'
    )
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not data:
        raise InvalidArgumentError(f"{option}={value!r} is not one of: {form}")
    if "version" in data and "pchannels" in data:
        return dict(StreamOffset.parse(data).pchannels)
    try:
        return {name: _place(name, place) for name, place in data.items()}
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{option}: {error}; accepted are {form}") from error


def _place(pchannel: str, place: Any) -> PChannelOffset | str:
    if not isinstance(place, str):
        return parse_pchannel_offset(pchannel, place)
    if place.lower() in (EARLIEST, LATEST):
        return place.lower()
    return parse_pchannel_offset(pchannel, {"id": str(MessageID.parse(place))})


def _number(option: str, value: str, first: int, last: int, what: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX and first <= int(value) <= last):
        raise InvalidArgumentError(f"{option}={value!r} is out of range: {what}, from {first} to {last}")
    return int(value)


def _positive(option: str, value: str) -> int:
    return _number(option, value, 1, (1 << 63) - 1, "a whole number")


def _from_zero(option: str, value: str) -> int:
    return _number(option, value, 0, 1 << 40, "milliseconds")


def _tick(option: str, value: str) -> int:
    return _number(option, value, 0, (1 << 63) - 1, "a time tick")


def _timestamp(option: str, value: str) -> int:
    return _number(option, value, 0, (1 << 45) - 1, "milliseconds since 1970") << LOGICAL_BITS


def _truth(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"{option}={value!r} is neither true nor false")
    return value.lower() == "true"


def _types(option: str, value: str) -> frozenset[int]:
    accepted = {kind.name: int(kind) for kind in MessageType if not type_properties(kind).system}
    names = [name.strip().upper() for name in value.split(",")]
    if unknown := [name for name in names if name not in accepted]:
        raise InvalidArgumentError(f"{option}: {unknown[0]!r} is not a message type: name some of {', '.join(accepted)}")
    return frozenset(accepted[name] for name in names)


@lru_cache(maxsize=1 << 17)
def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None
