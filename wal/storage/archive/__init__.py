"""The archive of a log: immutable objects in a directory or an object store, which backups write, and readers anywhere read.

`manifest.py` describes one backup, and is pure. `store.py` is the store of the objects: a directory or an object store.
`objects.py` has the form of the objects and of their indexes, and `archive_log.py` reads them as a log.
"""
