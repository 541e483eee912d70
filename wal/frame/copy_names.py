"""CopyNames: the vchannels that a broadcast's copies in a frame are for, and the columns of their runs.

Owns the bytes that do not depend on the frame: many broadcasts go to the same thousand vchannels, and their columns are made once. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from wal.errors import InvalidArgumentError

__all__ = ["CopyNames", "RunName"]

RunName = tuple[str, int]
"""A vchannel in a frame: its name and the number of its incarnation."""


class CopyNames:
    """`names`, each once and at least one (InvalidArgumentError otherwise); `texts` without their incarnations.

    `name_lens`, `incarnations`, `joined`: as they stand in the tables of a frame.
    """

    __slots__ = ("incarnations", "joined", "name_lens", "names", "texts")

    def __init__(self, names: Sequence[RunName]) -> None:
        if not names or len(set(names)) != len(names):
            raise InvalidArgumentError(
                f"a broadcast over {list(names)}: name at least one vchannel, and each of them once"
            )
        self.names: tuple[tuple[str, int], ...] = tuple(names)
        self.texts: list[str] = [name for name, _ in self.names]
        encoded = [text.encode() for text in self.texts]
        self.name_lens: bytes = pack(f"<{len(names)}H", *map(len, encoded))
        self.incarnations: bytes = pack(f"<{len(names)}I", *[incarnation for _, incarnation in self.names])
        self.joined: bytes = b"".join(encoded)

    def __len__(self) -> int:
        return len(self.names)
