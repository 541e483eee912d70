"""Cursors: saved positions of readers, kept under a name and shared by all processes that read; they hold back retention.

A cursor is a record in the log (`records.py`). Processes beside the writer store pins (`pins.py`), of which the writer makes records, and
take the newest of both (`pinned.py`). `cursor_status` returns whether a saved cursor still holds.
"""
