"""The command line: `wal standalone …` and `wal mark-restored …`, or `python -m wal …`.

`main` finds the command and says what becomes of its errors; each command has a file with its flags and its help. Options come from a
file, from WAL_… variables and from flags. Only `serving` needs the extra `cluster`.
"""
