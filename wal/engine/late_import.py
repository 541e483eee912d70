"""Importing what only an opening needs, in a thread, while the event loop goes on."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

__all__ = ["import_late"]


async def import_late(name: str) -> None:
    """Imports a module in a thread, unless it is loaded already. Raises what the import raises.

    An import reads files and takes tens of milliseconds, which the event loop must not wait for. After this call an `import`
    statement for the module finds it loaded.
    """
    module = sys.modules.get(name)
    # A module that another thread is importing is also waited for in a thread.
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, name)
