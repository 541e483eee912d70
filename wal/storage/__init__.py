"""Storage of frames and metadata. A backend stores frames only, whatever they contain; `base.py` is its interface.

`read_only.py` is the interface of every log that another process writes: blocking pages, moments and searches, the latter by `search.py`.

`journal/` keeps segment files in a directory and is the default, `memory.py` a log in this process, `pulsar/` a topic for each pchannel.
`archive/` has the objects of backups, in a directory or an object store.
`pieces.py` has the form of the state that a backend stores with a checkpoint. `kv/` has the metadata, and `files/` the locks, the access
and the names of the files of a log.
"""
