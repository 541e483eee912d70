"""Cursors: saved positions of readers, kept under a name and shared by all processes that read; they hold back retention.

A `CursorStore` keeps them, in files, in metadata or in memory, under one lock between saves and truncations. `cursor_status` says what a
saved one is worth now. The `CursorService` serves the callers on an event loop, in threads.
"""
