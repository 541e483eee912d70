"""The codec of a frame's blocks: zstd at level 1, from the standard library (Python 3.14) or the package `backports.zstd`.

Owns the import of the package, which happens when the first compressed frame is written or read, and the errors without it. Each block is
compressed separately, so that a reader still fetches only the blocks that it needs. A block that does not shrink is stored unchanged.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any, Final

from wal.errors import CorruptionError, FormatError
from wal.runtime.installation import Needed

LEVEL: Final = 1
BODY_BYTES_MIN: Final = 512
"""Smaller bodies are not compressed: a journal stores a frame in whole sectors of this size, so nothing would be saved."""


@cache
def load_zstd() -> Any:
    """Returns the module of zstd; raises an ImportError with the command that installs it."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    with Needed("compression needs the package", "zstd"):
        return importlib.import_module(name)


class Compressor:
    """Compresses one block after the other. Only one thread uses it."""

    def __init__(self) -> None:
        """Raises FormatError without the package: a log that is saved as compressed cannot be written without it."""
        self._zstd = _required("the log is written with compressed frames")
        self._compressor = self._zstd.ZstdCompressor(level=LEVEL)

    def compress(self, block: bytes) -> bytes:
        """Returns the block as it is stored: compressed, or the block itself if that is not larger."""
        stored: bytes = self._compressor.compress(block, self._zstd.ZstdCompressor.FLUSH_FRAME)
        return stored if len(stored) < len(block) else block


def decompress(stored: bytes, size: int) -> bytes:
    """Returns the `size` bytes of a stored block. Raises CorruptionError, and FormatError without the package.

    Whatever the stored bytes claim, they are expanded to no more than `size` bytes.
    """
    return stored if len(stored) == size else expand(_required("the frame is compressed"), stored, size)


def expand(zstd: Any, stored: bytes, size: int) -> bytes:
    """Returns the `size` bytes to which `zstd`, the module, expands stored bytes, and never more. Raises CorruptionError."""
    try:
        decompressor = zstd.ZstdDecompressor()
        data: bytes = decompressor.decompress(stored, size)
        whole = decompressor.eof and not decompressor.unused_data
    except zstd.ZstdError as error:
        raise CorruptionError(f"a compressed block cannot be read: {error}", expected=f"zstd of {size} bytes") from error
    if len(data) != size or not whole:
        raise CorruptionError("a compressed block has another size than is stated for it", expected=f"{size} bytes")
    return data


def _required(what: str) -> Any:
    try:
        return load_zstd()
    except ImportError as error:
        raise FormatError(f"{what}: {error}") from error
