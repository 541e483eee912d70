"""Request: the base class of everything that can be asked of a log.

A request is a frozen value. Its checks run when it is made, so every request that exists is valid by itself; what it means for the log as
it is then, the node decides. Whoever hands requests on (a client, a server, a proxy) judges them by these class attributes alone:

    where        which server answers it       right     which right a token needs for it
    changes      the fence executes no late one      waits     it may wait for others before it begins
    writes       without an answer its outcome is unknown      repeatable   it is sent again until it is answered
    visible      readers of the client see what it changed      creates   its vchannel is created if it does not exist
    room         the bytes that it takes in flight

A new request is a struct in a file of this room, a message of the same name and fields in wal/rpc/api/requests.proto, and an entry in the
table of the node or of the coordinator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError, WALError
from wal.requests.rights import Right
from wal.settings import Settings

Answer = TypeVar("Answer")


class Where(enum.Enum):
    """Which server answers a request."""

    COORDINATOR = "coordinator"
    VCHANNEL = "vchannel"
    """The node that has the pchannel of the vchannel `target`, or of the one that `target` would be created on."""
    PCHANNEL = "pchannel"
    """The node that has the pchannel `target`."""
    NODE = "node"
    """The node with a pchannel, whose start the leader of the cluster names, and itself."""
    EACH_PCHANNEL = "each pchannel"
    """The node of each pchannel; `join` makes one answer of theirs."""


class Request(msgspec.Struct, Generic[Answer], frozen=True):
    """A request whose answer has the type of its parameter: `class LatestTick(Request[int], frozen=True)`."""

    where: ClassVar[Where]
    saying: ClassVar[str]
    """The action of a client with the request, for errors; the request is formatted into it: "truncating up to {0.up_to}"."""
    right: ClassVar[Right] = Right.READ
    changes: ClassVar[bool] = False
    """Whether one that its client has given up must not be executed any more once a later call of the client was answered."""
    waits: ClassVar[bool] = False
    """Whether such a change may wait for other callers before it begins: later calls of its client do not wait for it then."""
    writes: ClassVar[bool] = False
    """Whether something may be left of one without an answer: that is an UnknownOutcomeError, otherwise an UnavailableError."""
    creates: ClassVar[bool] = False
    """Whether its vchannel is created if it does not exist, as by an append."""
    insists_s: ClassVar[float] = 0.0
    """How long a client sends it again while servers refuse it as unavailable."""
    sent: ClassVar[type[Any] | None] = None
    """The type in which the answer is sent, if that is another one: `packed` makes it, and `unpacked` the answer."""
    visible: ClassVar[bool] = False
    """Whether the readers of the client see what it changed in its pchannel once it is answered."""

    @classmethod
    def answer(cls) -> Any:
        """Returns the type of the answer."""
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]  # every generic class has them

    @property
    def repeatable(self) -> bool:
        """Whether executing it twice does no harm: it is sent until it is answered. Otherwise it is executed at most once."""
        return True

    @property
    def room(self) -> int:
        """The bytes that it takes in flight, once there is room for them."""
        return 0

    def check(self, settings: Settings) -> None:
        """Raises the error of a request that a log with these settings refuses, before anything is done for it."""

    @property
    def target(self) -> str:
        """The name of the vchannel or the pchannel that `where` is about; empty if it is about none."""
        return ""

    @property
    def doing(self) -> str:
        """The action of a client with the request, for errors: "truncating up to …"."""
        return self.saying.format(self)

    @property
    def is_repeatable(self) -> bool:
        """Whether this one is sent until it is answered."""
        return self.repeatable

    @property
    def local_only(self) -> bool:
        """Whether a client must not ask another process for the answer."""
        return False

    @property
    def timeout_s(self) -> float | None:
        """How long a client waits for the answer; None: as long as for any other, infinity: for ever."""
        return None

    def packed(self, answer: Answer) -> Any:
        """Returns the answer as it is sent."""
        return answer

    def unpacked(self, answer: Any) -> Answer:
        """Returns the answer that was sent. Raises UnknownError for an answer that does not fit the request."""
        answered: Answer = answer
        return answered

    @property
    def ends(self) -> tuple[str, ...]:
        """The vchannels that end with the request. Earlier appends of the client to them are executed first."""
        return ()

    def newest_tick(self, answer: Answer) -> int:
        """Returns the largest tick in the answer: later writes of the client are above it. 0 without one. A client sends the largest tick
        that it has seen in the field `seen_time_tick` of requests with this field.
        """
        return 0

    def elsewhere(self, pchannels: Iterable[str]) -> WALError:
        """Returns the error for a request whose pchannel `target` is not among those of the log."""
        return InvalidArgumentError(f"pchannel {self.target!r} does not exist: this log has {', '.join(pchannels)}")

    def join(self, outcomes: Sequence[Any]) -> Any:
        """Returns the answer of a log from the answers of its pchannels, some of which may be errors; raises the error of the log."""
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return tuple(chain.from_iterable(outcomes))


class VChannelRequest(Request[Answer], frozen=True):
    """A request about one vchannel."""

    where: ClassVar[Where] = Where.VCHANNEL

    vchannel: str

    def __post_init__(self) -> None:
        check_vchannel(self.vchannel)

    @property
    def target(self) -> str:
        return self.vchannel


class LogRequest(Request[Answer], frozen=True):
    """A request about the log as a whole."""

    where: ClassVar[Where] = Where.COORDINATOR


class LogChange(LogRequest[Answer], frozen=True):
    """A request that changes what there is, executed at most once, and never late."""

    right: ClassVar[Right] = Right.WRITE
    changes: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False


class LeaderRequest(Request[Answer], frozen=True):
    """A request of the leader of a cluster to a node."""

    where: ClassVar[Where] = Where.NODE
    right: ClassVar[Right] = Right.SERVER
    writes: ClassVar[bool] = True
