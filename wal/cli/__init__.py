"""The command line: `wal standalone …`, or `python -m wal standalone …`.

Files, from the bottom up:

* options:     the options of a command, from a file, from WAL_… variables and from flags
* serving:     serves one log to clients until a signal; needs the extra `cluster`, as all other files do not
* standalone:  `wal standalone`: its flags and its help
* main:        the commands, and what becomes of their errors
"""
