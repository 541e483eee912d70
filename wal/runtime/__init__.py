"""Services for any process, independent of logs: an event loop in a thread, threads for calls that block, pauses, secrets.

`installation` checks the installed packages, `system` has the calls that differ between operating systems, and `descriptors` opens files.
`user_code` makes exceptions of the caller's code harmless. This package imports nothing about logs.
"""
