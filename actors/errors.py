"""What can go wrong between actors.

    ActorError
    ├── ActorFailedError                 it raised, and was poisoned: .cause
    ├── ActorStoppedError                it was stopped, left its group, or was never started
    ├── InboxFullError                   the bound of an inbox is reached: wait, or use tell_wait
    └── WrongLoopError (RuntimeError)    called from another event loop or thread than the one that started it

Stopped-by-you and broken-by-a-bug are different classes: the first is expected at shutdown, the second never is.
"""

from __future__ import annotations

__all__ = ["ActorError", "ActorFailedError", "ActorStoppedError", "InboxFullError", "WrongLoopError"]


class ActorError(Exception):
    """The base of every error that this room raises on purpose (besides TypeError and ValueError for wrong arguments)."""


class ActorFailedError(ActorError):
    """The actor raised while it worked and takes no messages any more. Nothing is restarted: make a new one.

    `cause` is what it raised; it is also the `__cause__`. Each caller gets an error of its own around the one cause.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"actor {name!r} failed and takes no messages any more: {type(cause).__name__}: {cause}")
        self.name = name
        self.cause = cause
        self.__cause__ = cause


class ActorStoppedError(ActorError):
    """The actor, its group or its system is stopping, has stopped, or was not started."""


class InboxFullError(ActorError):
    """The inbox holds as much as it may. Nothing was told: wait for room (`tell_wait`) or try again later."""


class WrongLoopError(ActorError, RuntimeError):
    """Actors belong to the event loop that started them: hand the call over with `loop.call_soon_threadsafe`."""
