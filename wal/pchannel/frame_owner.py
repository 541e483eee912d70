"""FrameOwner: the part of the pchannel that its frame pipeline calls."""

from __future__ import annotations

from typing import Protocol

from wal.errors import WALError
from wal.frame import EncodedFrame

__all__ = ["FrameOwner"]


class FrameOwner(Protocol):
    """What a `FramePipeline` tells of its frames. Frames are expected, shown and settled in one order; a refused one is never shown."""

    def expect(self, frame: EncodedFrame) -> None:
        """Called when a frame was handed to the backend."""

    def show(self, position: int, frame: EncodedFrame, *, promised_tick: int) -> None:
        """Called when the oldest frame in flight is durable, before its callers have their results."""

    def frame_durable(self, frame: EncodedFrame) -> None:
        """Called when the callers of a durable frame have their results."""

    def frame_settled(self) -> None:
        """Called when a frame is durable or was refused, and the frames that could follow it were handed over."""

    def fail(self, error: WALError, *, answered: bool = False) -> None:
        """Called when the log takes no more frames: it must call `FramePipeline.stop`."""

    def poisoned(self, cause: BaseException, unhandled: list[object]) -> None:
        """Called for a defect in the pipeline: nothing can be written any more."""
