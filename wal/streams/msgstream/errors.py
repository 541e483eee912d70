"""The errors that only message streams raise."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from wal.errors import UnknownError, WALError, caused
from wal.runtime.user_code import text_of

if TYPE_CHECKING:
    from wal.streams.msgstream.ts_msg import MsgPosition


def failure(cause: BaseException) -> BaseException:
    """Returns the error that a stream which ends for this cause raises to its callers.

    A CancelledError would look like the caller's own cancellation, and a StopIteration like the end of the caller's iteration.
    """
    if not isinstance(cause, CancelledError | GeneratorExit | StopAsyncIteration | StopIteration):
        return cause
    kind = type(cause).__name__
    return caused(
        UnknownError(f"on_refused, or a call of the medium, raised {kind}, which ends the message stream: open another one"), cause
    )


class PartialSendError(WALError):
    """A medium sent some of the messages, but not all; raised from the cause. Streams turn it into a ProduceError.

    `.durable` maps each channel to the ids of its messages in the order of sending, None for an id that is not known to be durable.
    """

    def __init__(self, text: str, *, durable: Mapping[str, Sequence[bytes | None]]) -> None:
        super().__init__(text)
        self.durable: Mapping[str, Sequence[bytes | None]] = durable


def cause_of(error: BaseException) -> BaseException:
    """Returns the cause of a failed call: the cause of a PartialSendError, any other error itself."""
    return error.__cause__ if isinstance(error, PartialSendError) and error.__cause__ is not None else error


class ProduceError(WALError):
    """`produce` or `broadcast` failed while it sent. It is also of the class of its `__cause__`, with its `code` and `retryable`.

    `.results` maps each channel to the positions of its messages in the order of sending, None for a message that is not known to be
    durable. It omits channels without a durable message.
    """

    results: Mapping[str, Sequence[MsgPosition | None]] = {}

    @classmethod
    def of(cls, cause: Exception, results: Mapping[str, Sequence[MsgPosition | None]]) -> ProduceError:
        """Returns the error for this cause, with the durable positions."""
        kind = _class_for(type(cause))
        error = kind.__new__(kind)
        durable = sum(position is not None for positions in results.values() for position in positions)
        error.args = (f"{text_of(cause)}; {durable} messages of this call are durable: their positions are in .results",)
        error.__dict__.update(cause.__dict__)
        error.results = results
        error.__cause__ = cause
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return ProduceError.of, (self.__cause__, self.results)


_CLASSES: Final[dict[type[Exception], type[ProduceError]]] = {}


def _class_for(cause: type[Exception]) -> type[ProduceError]:
    """Returns the class of errors for causes of this class. A cause that is not a WALError adds nothing to it."""
    if not issubclass(cause, WALError):
        return ProduceError
    if cause not in _CLASSES:
        names = {"__module__": __name__, "__doc__": ProduceError.__doc__}
        _CLASSES[cause] = type(ProduceError.__name__, (ProduceError, cause), names)
    return _CLASSES[cause]
