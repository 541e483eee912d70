"""Importing what only an opening needs, while the loop goes on.

An import reads files and takes tens of milliseconds, so it happens in a thread. Whoever awaited it can name the module in an import of
its own then, which finds it there. Owns nothing.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

__all__ = ["import_late"]


async def import_late(name: str) -> None:
    """Imports a module, in a thread unless it is there already. Raises what the import raises."""
    module = sys.modules.get(name)
    # One that another thread is importing just now is waited for in a thread as well.
    if module is None or getattr(module.__spec__, "_initializing", False):
        await asyncio.to_thread(import_module, name)
