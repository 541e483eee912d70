"""The errors of actors.

    ActorError
    ├── ActorFailedError                 the actor raised, and was poisoned: .cause
    ├── ActorStoppedError                the actor was stopped, left its group, or was never started
    ├── InboxFullError                   the bound of an inbox is reached: wait, or use tell_wait
    └── WrongLoopError (RuntimeError)    the call comes from another event loop or thread than the actor's

"Stopped by the caller" and "broken by a bug" are different classes: only the first is expected at shutdown.
"""

from __future__ import annotations


def described(cause: BaseException) -> str:
    """Returns the cause as one line: `ValueError: no such thing`. It never raises, whatever the cause's `__str__` does."""
    kind = type(cause).__name__
    try:
        return f"{kind}: {cause}"
    except BaseException as broken:
        return f"{kind}: (its text cannot be shown: its __str__ raised {type(broken).__name__})"


class ActorError(Exception):
    """The base of every error of this package, except TypeError and ValueError for wrong arguments."""


class ActorFailedError(ActorError):
    """The actor raised an exception and accepts no more messages. It is not restarted: create a new one.

    `cause` is that exception, and also the `__cause__`. Each caller gets its own error with the same cause.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"actor {name!r} failed and takes no more messages: {described(cause)}")
        self.name = name
        self.cause = cause
        self.__cause__ = cause


class ActorStoppedError(ActorError):
    """The actor, its group or its system is stopping, has stopped, or was not started."""


class InboxFullError(ActorError):
    """The inbox is full and the message was not added: wait for room (`tell_wait`) or try again later."""


class WrongLoopError(ActorError, RuntimeError):
    """The call comes from another event loop: pass it to the actor's loop with `loop.call_soon_threadsafe`."""
