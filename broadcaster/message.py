"""The data of a broadcast: the arguments and results of a caller, its states, and the types of the interface to the log. Pure.

Owns the checks of a `BroadcastMessage` before it is used, and of the arguments of every other call, the same in the broadcaster's process
and in a client; and `EDGES`, all transitions between the states. A message never changes; the same object may be appended again, as a new
broadcast.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from broadcaster.lock_table import distinct_keys
from wal.errors import InvalidArgumentError
from wal.message import (
    AppendResult,
    BroadcastHeader,
    CopyOutcomes,
    ImmutableMessage,
    Message,
    MessageType,
    ResourceKey,
    encode_properties,
    properties_size,
    type_properties,
)

REASON_BYTES_MAX: Final = 4_096
"""The most UTF-8 bytes in the reason of an abort, which is the payload of a message to each vchannel."""


class BroadcastState(enum.IntEnum):
    """The state of a broadcast. The numbers 1 to 3 are Milvus'."""

    PENDING = 1
    """Copies are missing, and are being written."""
    DONE = 2
    """Every copy is durable, and acknowledged if required."""
    WAIT_ACK = 3
    """Every copy is durable; acks are missing."""
    STUCK = 6
    """The missing copies were refused permanently: recreate those vchannels, or abort the broadcast."""
    ABORTING = 7
    """The broadcast was aborted; the ABORT_BROADCAST messages to the vchannels that have a copy are being written."""
    ABORTED = 8
    """The broadcast was aborted, and every vchannel that has a copy got its ABORT_BROADCAST."""
    WITHDRAWN = 9
    """Every vchannel refused the broadcast before any part of it was in a log."""


EDGES: Final[Mapping[BroadcastState, frozenset[BroadcastState]]] = {
    BroadcastState.PENDING: frozenset(
        (BroadcastState.STUCK, BroadcastState.WAIT_ACK, BroadcastState.DONE, BroadcastState.ABORTING, BroadcastState.WITHDRAWN)
    ),
    BroadcastState.STUCK: frozenset((BroadcastState.PENDING, BroadcastState.WAIT_ACK, BroadcastState.DONE, BroadcastState.ABORTING)),
    BroadcastState.WAIT_ACK: frozenset((BroadcastState.DONE, BroadcastState.ABORTING)),
    BroadcastState.ABORTING: frozenset((BroadcastState.ABORTED,)),
    BroadcastState.DONE: frozenset(),
    BroadcastState.ABORTED: frozenset(),
    BroadcastState.WITHDRAWN: frozenset(),
}
"""The transitions. A task that every vchannel acknowledges while copies are still missing goes from PENDING to DONE."""


BYTES_A_VCHANNEL: Final = 64
"""The bytes that `estimate_size` counts for each vchannel in addition to its name."""

RUN_BYTES: Final = 20
"""The bytes that each vchannel takes in a frame besides its name: the row of a run, or the head of its name in the header."""
FRAME_OVERHEAD: Final = 1024
REMEMBERED_MAX: Final = 16_384
"""The most names of a tuple that is remembered: as many as a broadcast has by default."""

Outcomes = tuple[Sequence[str], CopyOutcomes]
"""Some vchannels, and the outcomes of their copies in the same order."""


class BroadcastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message for many vchannels (each counts once), with the resource keys that it keeps until all of them have acknowledged it.

    With `needs_ack=False` no vchannel has to acknowledge it: its keys are free once all copies are durable. A wrong type raises TypeError;
    an empty list of vchannels, a reserved property key, or a message type that only the WAL writes raises InvalidArgumentError.
    """

    vchannels: Sequence[str]
    payload: bytes
    message_type: MessageType = MessageType.INSERT
    properties: dict[str, str] = {}
    resource_keys: Sequence[ResourceKey] = ()
    needs_ack: bool = True

    def __post_init__(self) -> None:
        vchannels, keys = self.vchannels, self.resource_keys
        if not _is_sequence(vchannels):
            raise TypeError(f"vchannels must be a sequence of str, not {type(vchannels).__name__}")
        if not vchannels:
            raise InvalidArgumentError("vchannels is empty: a broadcast goes to at least one vchannel")
        names = names_of(tuple(vchannels))
        if isinstance(keys, ResourceKey) or not _is_sequence(keys):
            raise TypeError(f"resource_keys must be a sequence of ResourceKey, not {type(keys).__name__}")
        for key in keys:
            if not isinstance(key, ResourceKey):
                raise TypeError(f"resource_keys must hold ResourceKey(domain, key), not {key!r}")
        if not isinstance(self.needs_ack, bool):
            raise TypeError(f"needs_ack must be a bool, not {self.needs_ack!r}")
        # The other fields are checked like those of any message.
        message = Message(vchannels[0], self.payload, message_type=self.message_type, properties=self.properties)
        if not type_properties(self.message_type).appendable:
            raise InvalidArgumentError(
                f"message_type {self.message_type.name} cannot be broadcast, since only the WAL itself writes one: choose a type of your "
                "own messages"
            )
        force = msgspec.structs.force_setattr
        force(self, "vchannels", names.vchannels)
        force(self, "properties", message.properties)
        force(self, "resource_keys", distinct_keys(keys) if len(keys) > 1 else tuple(keys))

    def estimate_size(self) -> int:
        """Returns the bytes of the payload and the properties, each counted once, plus the size of the vchannel names."""
        letters = names_of(tuple(self.vchannels)).letters
        return self.content_bytes() + letters + BYTES_A_VCHANNEL * len(self.vchannels)

    def content_bytes(self) -> int:
        """Returns the bytes of the payload and the properties: the `Message.estimate_size` of a single copy."""
        return len(self.payload) + (properties_size(self.properties) if self.properties else 0)

    def check_size(self, *, message_bytes_max: int, frame_bytes_max: int) -> None:
        """Raises InvalidArgumentError if it exceeds a bound of the log; else every vchannel would refuse it, after its keys were taken."""
        count = len(self.vchannels)
        payload = self.content_bytes()
        if payload > message_bytes_max:
            raise InvalidArgumentError(
                f"a broadcast of {payload} bytes (payload and properties) exceeds message_bytes_max={message_bytes_max}: split "
                "it, store the payload in another place and broadcast a reference, or raise the setting"
            )
        keys = sum(len(key.domain.encode()) + len(key.key.encode()) + RUN_BYTES for key in self.resource_keys)
        stored = len(self.payload) + (len(encode_properties(self.properties)) if self.properties else 0)
        # Its frames name each vchannel once, whichever pchannels the vchannels are on.
        named = names_of(tuple(self.vchannels)).stored_bytes + RUN_BYTES * count
        if (size := stored + keys + named + FRAME_OVERHEAD) > frame_bytes_max:
            raise InvalidArgumentError(
                f"a broadcast to {count} vchannels takes {size} bytes with their names, its payload and its keys, and a frame takes "
                f"{frame_bytes_max}: split it into several broadcasts"
            )


class BroadcastTask(msgspec.Struct, frozen=True):
    """A running broadcast at one moment. `last_error` prevents a copy or a record from being saved; None without an error."""

    broadcast_id: int
    state: BroadcastState
    resource_keys: tuple[ResourceKey, ...]
    missing_appends: tuple[str, ...]
    missing_acks: tuple[str, ...]
    age_s: float
    last_error: str | None = None


class BroadcastAppendResult:
    """The result of a broadcast whose copies are all durable: its id, and the message id and tick of each vchannel's copy.

    `append_results` is a plain dict in the order of the message's vchannels. Two results are equal when both fields are; a result
    never changes (the dict is the caller's own). The dict is created at its first use: most callers look at none of a thousand vchannels,
    and a frame describes its copies in a few numbers.
    """

    __slots__ = ("_append_results", "_broadcast_id", "_outcomes", "_vchannels")
    __match_args__ = ("broadcast_id", "append_results")
    __hash__: Final = None  # type: ignore[assignment]

    def __init__(self, broadcast_id: int, append_results: dict[str, AppendResult]) -> None:
        self._broadcast_id = broadcast_id
        self._append_results: dict[str, AppendResult] | None = append_results
        self._outcomes: Iterable[Outcomes] = ()
        self._vchannels: Sequence[str] = ()

    @classmethod
    def of(cls, broadcast_id: int, vchannels: Sequence[str], outcomes: Iterable[Outcomes]) -> BroadcastAppendResult:
        """Returns the result of a broadcast to `vchannels`, each of which has a result in one of the outcomes; errors are omitted."""
        made = cls.__new__(cls)
        made._broadcast_id = broadcast_id
        made._append_results = None
        made._vchannels = vchannels
        made._outcomes = outcomes
        return made

    @property
    def broadcast_id(self) -> int:
        """The broadcast's id: a time tick below those of all its copies."""
        return self._broadcast_id

    @property
    def append_results(self) -> dict[str, AppendResult]:
        """The result of each vchannel's copy."""
        results = self._append_results
        if results is None:
            outcomes_by_name = {
                name: outcome
                for names, outcomes in self._outcomes
                for name, outcome in zip(names, outcomes, strict=True)
                if not isinstance(outcome, Exception)
            }
            results = self._append_results = {name: outcomes_by_name[name] for name in self._vchannels}
            self._outcomes = ()
        return results

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BroadcastAppendResult):
            return NotImplemented
        return self.broadcast_id == other.broadcast_id and self.append_results == other.append_results

    def __repr__(self) -> str:
        return f"BroadcastAppendResult(broadcast_id={self.broadcast_id}, append_results={self.append_results})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BroadcastAppendResult, (self.broadcast_id, self.append_results)


class BroadcasterStatistics(msgspec.Struct, frozen=True):
    """The counts of a broadcaster at one moment.

    Of the running `tasks`, `pending` miss copies, `waiting_acks` miss acks, `stuck` cannot continue and `aborting` are being aborted; the
    oldest of them began `oldest_s` seconds ago. `waiting` calls wait for resource keys; `frames` are being written; `done_marks` are
    finished broadcasts that await a checkpoint.
    """

    tasks: int
    waiting: int
    frames: int
    bytes_held: int
    tombstones: int
    done_marks: int
    appended: int
    finished: int
    saves: int
    pending: int = 0
    waiting_acks: int = 0
    stuck: int = 0
    aborting: int = 0
    oldest_s: float = 0.0


class Content(msgspec.Struct, frozen=True, gc=False):
    """The part that all copies of a broadcast share; `properties` are in their stored form."""

    payload: bytes
    message_type: int
    properties: bytes = b""


class CopiesInLog(msgspec.Struct, frozen=True):
    """The copies of a broadcast in the recovered log of a pchannel that were not forgotten.

    `vchannels` have their copy; the log also has the ABORT_BROADCAST of the vchannels in `aborted`.
    """

    pchannel: str
    header: BroadcastHeader
    vchannels: tuple[str, ...]
    aborted: tuple[str, ...] = ()


class VChannelNames(msgspec.Struct, frozen=True, gc=False):
    """`vchannels` names each vchannel once, in order. `letters` and `stored_bytes` (UTF-8) are totals over all names."""

    vchannels: tuple[str, ...]
    letters: int
    stored_bytes: int


def names_of(vchannels: tuple[str, ...]) -> VChannelNames:
    """Returns the results that depend on these names alone; raises TypeError for a name that is not a str. The log validates the names.

    The last few tuples are remembered, since most broadcasts go to the same thousand vchannels. The tuple of the last answer is recognized
    by its identity: to hash a thousand names takes longer than the rest of a call.
    """
    names = _last[0]
    if names.vchannels is vchannels:
        return names
    try:
        remember = len(vchannels) <= REMEMBERED_MAX
        names = _last[0] = _names_of(vchannels) if remember else _names_of.__wrapped__(vchannels)
    except TypeError:
        _check_names(vchannels)  # names the culprit; the cache only reports that an object is unhashable
        raise
    return names


@lru_cache(maxsize=16)
def _names_of(vchannels: tuple[str, ...]) -> VChannelNames:
    _check_names(vchannels)
    joined = "".join(vchannels)
    distinct = tuple(dict.fromkeys(vchannels))
    if len(distinct) != len(vchannels):
        joined = "".join(distinct)
    # The log refuses a name with a lone surrogate later; here its bytes are only counted.
    return VChannelNames(distinct, len(joined), len(joined.encode(errors="surrogatepass")))


def _check_names(vchannels: tuple[str, ...]) -> None:
    if set(map(type, vchannels)) != {str}:  # one check for all of them, since there may be thousands
        for name in vchannels:
            if not isinstance(name, str):
                raise TypeError(f"a vchannel is named by a str, not {type(name).__name__}")


def _is_sequence(value: object) -> bool:
    """Returns whether this is a sequence other than a str or bytes."""
    # The class is compared first: an isinstance check of an abstract class costs more than all other checks.
    return value.__class__ in (list, tuple) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


_last: Final = [VChannelNames((), 0, 0)]


def check_append(message: object, wait: object) -> None:
    """Raises TypeError for arguments that `append` does not accept."""
    if not isinstance(message, BroadcastMessage):
        raise TypeError(f"append takes a BroadcastMessage, not {type(message).__name__}")
    if not isinstance(wait, bool):
        raise TypeError(f"wait must be a bool, not {wait!r}")


def copy_named(broadcast: int | ImmutableMessage, vchannel: str | None) -> tuple[int, str]:
    """Returns the broadcast and the vchannel of the copy to acknowledge, for `ack(broadcast_id, vchannel)` or `ack(message)`."""
    if isinstance(broadcast, ImmutableMessage):
        if vchannel is not None:
            raise InvalidArgumentError(f"ack(message) has its vchannel: leave out {vchannel!r}")
        if broadcast.broadcast is None:
            raise InvalidArgumentError(f"message {broadcast.message_id} is not a copy of a broadcast: acknowledge only copies")
        return broadcast.broadcast.broadcast_id, broadcast.vchannel
    check_id(broadcast)
    if not isinstance(vchannel, str):
        raise TypeError(f"ack(broadcast_id, vchannel) takes a str for the vchannel, not {vchannel!r}")
    return broadcast, vchannel


def check_id(broadcast_id: object) -> None:
    """Raises TypeError for a value that is not the id of a broadcast."""
    if not isinstance(broadcast_id, int) or isinstance(broadcast_id, bool):
        raise TypeError(f"a broadcast id is an int, not {broadcast_id!r}")


def check_key(key: object) -> None:
    """Raises TypeError for a value that is not a resource key."""
    if not isinstance(key, ResourceKey):
        raise TypeError(f"a resource key is a ResourceKey(domain, key), not {key!r}")


def check_reason(reason: object) -> None:
    """Raises TypeError or InvalidArgumentError for a value that cannot be the reason of an abort."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}")
    try:
        length = len(reason.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"reason cannot be encoded as UTF-8: {error.reason}; remove the surrogate") from error
    if length > REASON_BYTES_MAX:
        raise InvalidArgumentError(f"reason is {length} bytes long: at most {REASON_BYTES_MAX}")
