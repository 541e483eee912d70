"""Imports gRPC with settings of our own. Imported before everything else here, since gRPC reads its settings when it is imported.

The fork handlers are off: they restart gRPC's threads in a forked child. uvloop starts a subprocess with a plain fork, for which libc runs
the handlers, and one child in about thirty crashes in such a thread before it becomes the new program. (asyncio's own loop uses vfork,
which runs no handlers.) Without them a forked child cannot use gRPC, which is unreliable there with them too.

gRPC's lines on the standard error ("Got goaway …") are off: an error is raised by the call, or is a record of `logging`.

A program that sets these variables, or imports gRPC before this, keeps its own settings.
"""

import os
from typing import Final

_SETTINGS: Final = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
_own = {name: value for name, value in _SETTINGS.items() if name not in os.environ}

os.environ.update(_own)
try:
    import grpc  # noqa: F401
finally:
    for _name in _own:
        del os.environ[_name]  # the children of this process choose for themselves
