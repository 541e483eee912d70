"""The import of modules that only an opening needs: in a thread, while the event loop keeps running."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

__all__ = ["import_late"]


async def import_late(name: str) -> None:
    """Imports a module in a thread, unless it is loaded already. Raises what the import raises.

    An import reads files and takes tens of milliseconds; the event loop must not block that long. After this call an `import`
    statement finds the module loaded.
    """
    module = sys.modules.get(name)
    # If another thread is importing the module, this call waits for it in a thread too.
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, name)
