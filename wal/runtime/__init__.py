"""What a process needs, whatever it does with a log: an event loop in a thread, threads for calls that block, pauses, secrets.

`installation` knows which packages are installed, `system` the calls that differ between operating systems, and `descriptors` opens files.
`user_code` makes harmless what code of the caller raises. The modules know nothing of logs, and this package imports none of them.
"""
