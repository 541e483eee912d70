"""The names of a journal's files that more than one room knows; docs/reference/files.md says what each is."""

from __future__ import annotations

from typing import Final

__all__ = ["CURSORS_LOCK_NAME", "FORMAT_NAME", "LOCK_NAME"]

FORMAT_NAME: Final = "FORMAT"
"""The file that makes a directory a journal. Its mode says for the whole journal whether the group may read."""
LOCK_NAME: Final = "LOCK"
"""The lock file of the process that has the journal open for writing."""
CURSORS_LOCK_NAME: Final = "cursors.lock"
"""The lock file of a process that saves or deletes a cursor, or truncates."""
