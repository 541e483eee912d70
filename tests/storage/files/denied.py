"""Makes a system call fail in this process from now on, by a kernel filter, as on file systems without that call."""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import Final

_FLOCK: Final = {"x86_64": 73, "aarch64": 32}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


def deny_flock(errno: int) -> None:
    """Makes every later flock of the calling thread, and of threads that it starts, fail with this error."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    steps = ((_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, _FLOCK[platform.machine()]), (_RETURN, 0, 0, _ERRNO | errno), (_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
