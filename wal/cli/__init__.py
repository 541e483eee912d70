"""The command line: `wal standalone …`, or `python -m wal standalone …`.

Files, from the bottom up:

* options:     the options of a command, from a file, from WAL_… variables and from flags
* standalone:  `wal standalone`: serves one log to clients until it is told to stop
* main:        the commands, and what becomes of their errors
"""
