"""Window: which frames the client of Pulsar holds, and may send again. Pure.

The client sends everything that it holds again after a lost connection. A frame leaves the window only when the client has answered it,
or its producer was given up: that the frame was read in the log meanwhile says nothing of that. So what is sent again reaches back by
`frames_max` at most, which is what `FloorSearch` relies on. Answers come in the order of sending.
"""

from __future__ import annotations

__all__ = ["Window"]


class Window:
    """Of one writer: at most `frames_max` frames and `bytes_max` bytes; always room for one."""

    def __init__(self, *, frames_max: int, bytes_max: int) -> None:
        self.bytes: int = 0
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._held: dict[int, int] = {}
        self._handed = 0

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self, size: int) -> bool:
        """Whether a frame of this size may be handed to the client."""
        return not self._held or (len(self._held) < self._frames_max and self.bytes + size <= self._bytes_max)

    def hand_over(self, size: int) -> int:
        """The client gets a frame of this size; its number, for `answered`."""
        self._handed += 1
        self._held[self._handed] = size
        self.bytes += size
        return self._handed

    def answered(self, number: int) -> None:
        """The client has let go of it. Of one that it does not hold: nothing."""
        self.bytes -= self._held.pop(number, 0)

    def replaced(self) -> None:
        """The client's producer is closed: it sends nothing again."""
        self._held.clear()
        self.bytes = 0
