"""Storage: where frames and metadata are kept. A backend stores frames and knows nothing above them; `base.py` is its interface.

`read_only.py` is the seam of every log that another process writes: blocking pages, moments and searches, the latter by `search.py`.

`journal/` keeps segment files in a directory and is the default, `memory.py` a log in this process, `pulsar/` a topic for each pchannel.
`pieces.py` has the form of the state that a backend keeps with a checkpoint. `kv/` has the metadata, and `files/` the locks, the access
and the names of the files of a log.
"""
