"""The command line: `wal standalone …` and `wal mark-restored …`, or `python -m wal …`.

Files, from the bottom up:

* options:     the options of a command, from a file, from WAL_… variables and from flags
* serving:     serves one log to clients until a signal; needs the extra `cluster`, as all other files do not
* standalone:  `wal standalone`: its flags and its help
* restored:    `wal mark-restored`: notes that a journal was restored from a copy
* main:        the commands, and what becomes of their errors
"""
