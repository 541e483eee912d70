"""The command line: `wal COMMAND …`, or `python -m wal …`.

`commands.py` lists the commands. `main` imports the named one, and turns its errors into messages and exit statuses. `look.py` prints the
rows of `wal.operate.inspect` in the forms of `output.py`. Options come from a file, from WAL_… variables and from flags. Only `serving`
needs the extra `cluster`.
"""
