"""Imports gRPC without its own handlers of forks. Imported before everything else here, since gRPC reads its settings when it is imported.

The handlers restart gRPC's threads in a forked child. uvloop starts a subprocess with a plain fork, for which libc runs the handlers, and
one child in about thirty crashes in such a thread before it becomes the new program. (asyncio's own loop uses vfork, which runs none.)
Without them a forked child cannot use gRPC, which it cannot do reliably with them either.

A program that sets GRPC_ENABLE_FORK_SUPPORT, or imports gRPC before this, keeps what it chose.
"""

import os
from typing import Final

_SETTING: Final = "GRPC_ENABLE_FORK_SUPPORT"

if _SETTING not in os.environ:
    os.environ[_SETTING] = "0"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_SETTING]  # the children of this process choose for themselves
