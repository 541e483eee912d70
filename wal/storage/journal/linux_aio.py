"""AsyncWrite: one synced write in flight that the kernel carries out while the process continues (Linux AIO, by libc's `syscall`).

Owns: a kernel context with room for one request, the aligned buffer of that request, and the eventfd that the kernel signals when the
request is complete. The kernel gives a completion to exactly one `reap`, and so decides between two threads that want it. In a forked child
the request belongs to the parent: no write is in flight there.

A write is complete when its data is on the disk (RWF_DSYNC). Not every file system follows that flag for such writes: FUSE and btrfs, for
example, ignored it for years. `syncs_writes` recognises the file systems that do.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
import threading
import weakref
from typing import Final

from wal.runtime.descriptors import above_streams

_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit (asm/unistd.h), on machines where a long has 64 bits."""
_IOCB: Final = struct.Struct("<QIiHhIQQqQII")
"""struct iocb of linux/aio_abi.h: data, key, rw_flags, opcode, reqprio, fd, buf, nbytes, offset, reserved2, flags, resfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""struct io_event of linux/aio_abi.h: data, obj, res, res2."""
_TIMESPEC: Final = struct.Struct("<qq")
_IOCB_CMD_PWRITE: Final = 1
_IOCB_FLAG_RESFD: Final = 1
_RWF_DSYNC: Final = 2
_BUFFER_BYTES: Final = 64 * 1024
_SYNCING: Final = frozenset((0xEF53, 0x58465342))
"""f_type (linux/magic.h) of ext4 and XFS: their direct writes end in the kernel's generic_write_sync. btrfs is absent: before Linux 6.1 it
did not sync a direct write that was queued.
"""


class AsyncWrite:
    """At most one write in flight, and the buffer for its bytes. Creating an AsyncWrite raises OSError where this process has no AIO.

    `event_fd` becomes readable when the write is complete. Only `wait`, `end` and `close` wait.
    """

    __slots__ = ("__weakref__", "_address", "_buffer", "_calls", "_context", "_event", "_iocb", "_list", "event_fd")

    def __init__(self) -> None:
        calls = _CALLS.get(platform.machine())
        if not hasattr(os, "eventfd") or calls is None or sys.maxsize < 1 << 62:
            raise OSError(errno.ENOSYS, f"Linux AIO is not supported here on {sys.platform} ({platform.machine()})")
        self._calls = tuple(map(ctypes.c_long, calls))
        self._context: ctypes.c_ulong | None = None
        context = ctypes.c_ulong(0)
        if _libc.syscall(self._calls[0], _ONE, ctypes.byref(context)) != 0:
            raise _error("io_setup")
        try:
            self.event_fd: int = above_streams(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except BaseException:
            _libc.syscall(self._calls[1], context)
            raise
        self._context = context
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._list = ctypes.byref(ctypes.c_void_p(ctypes.addressof(self._iocb)))
        self._allocate(_BUFFER_BYTES)
        with _forking:
            _open.add(self)

    def buffer(self, length: int) -> mmap.mmap:
        """Returns the buffer for the next write, of at least this many bytes. Not while a write is in flight."""
        if length > len(self._buffer):
            self._allocate(2 * length)
        return self._buffer

    def submit(self, fd: int, length: int, offset: int) -> None:
        """Begins to write the first bytes of the buffer. After an OSError, nothing was written and nothing will be."""
        if self._context is None:
            raise OSError(errno.EBADF, "the context is closed, or belongs to the process that this one was forked from")
        _IOCB.pack_into(
            self._iocb, 0, 0, 0, _RWF_DSYNC, _IOCB_CMD_PWRITE, 0, fd, self._address, length, offset, 0, _IOCB_FLAG_RESFD, self.event_fd
        )
        if _libc.syscall(self._calls[3], self._context, _ONE, self._list) != 1:
            raise _error("io_submit")

    def reap(self) -> int | None:
        """Takes the completion: the number of bytes that are on the disk, or a negative errno. Returns None if the write is not complete,
        or the other thread has taken it.

        Only one thread, that of the loop, calls it.
        """
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            pass  # the other thread took the completion, and this one had seen its signal
        return self._take(_here, _ZERO, self._event, _NO_TIME)

    def wait(self, wait_s: float) -> int | None:
        """Takes the completion as `reap` does, but in another thread and after waiting for it. Returns None if the loop has taken it."""
        seconds = int(wait_s)
        time = ctypes.create_string_buffer(_TIMESPEC.pack(seconds, int((wait_s - seconds) * 1e9)), _TIMESPEC.size)
        return self._take(_libc, _ONE, ctypes.create_string_buffer(_EVENT.size), time)

    def end(self) -> None:
        """Waits for the write in flight, and releases the context: later calls write and take nothing. Blocks. Idempotent."""
        with _forking:
            context, self._context = self._context, None
            _open.discard(self)
        if context is not None:
            _libc.syscall(self._calls[1], context)

    def close(self) -> None:
        """Ends, and closes the eventfd, which no loop may watch any more. Blocks, so never call it on a loop. Idempotent."""
        self.end()
        if self.event_fd >= 0:
            os.close(self.event_fd)
            self.event_fd = -1

    def _take(self, libc: ctypes.CDLL, least: ctypes.c_long, event: ctypes.Array[ctypes.c_char], time: object) -> int | None:
        context = self._context
        if context is None or libc.syscall(self._calls[2], context, least, _ONE, event, time) != 1:
            return None  # no write is complete, a signal came first, or this process was forked
        result: int = _EVENT.unpack_from(event)[2]
        return result

    def _allocate(self, size: int) -> None:
        self._buffer = mmap.mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))


def syncs_writes(fd: int) -> bool:
    """Returns whether the file system of this open file is known to follow RWF_DSYNC."""
    statfs = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes, f_type first
    if _libc.fstatfs(ctypes.c_int(fd), statfs) != 0:
        return False
    return int.from_bytes(statfs.raw[:8], sys.byteorder) in _SYNCING


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call} failed: {os.strerror(number)}")


def _forget() -> None:
    """Makes the contexts of the parent unusable in a forked child."""
    for write in list(_open):
        write._context = None
    _open.clear()
    _forking.release()


_libc: Final = ctypes.CDLL(None, use_errno=True)
_here: Final = ctypes.PyDLL(None, use_errno=True)
"""The same library, called without releasing the GIL: for calls that take two microseconds."""
_ZERO: Final = ctypes.c_long(0)
_ONE: Final = ctypes.c_long(1)
_NO_TIME: Final = ctypes.create_string_buffer(_TIMESPEC.size)
_open: Final[weakref.WeakSet[AsyncWrite]] = weakref.WeakSet()
_forking: Final = threading.RLock()
"""Locked while `_open` changes, and while the process forks."""
os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forget)
