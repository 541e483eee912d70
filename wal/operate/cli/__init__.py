"""The command line: `wal COMMAND …`, or `python -m wal …`.

`commands.py` lists the commands, and `main` finds the one that is named, imports it, and says what becomes of its errors. `look.py` prints
the rows of `wal.operate.inspect`, as `output.py` shows them. Options come from a file, from WAL_… variables and from flags. Only `serving`
needs the extra `cluster`.
"""
