"""Copying a log into another, empty one: between journals and Pulsar, also onto another number of pchannels.

`source.py` reads the copied log, beside its writer, as one stream of frames in the order of their ticks; `served.py` reads a log on the
network. `cutting.py` chooses the target's pchannel of each vchannel, and cuts each frame accordingly; it is pure. `target.py` writes the
frames with their ticks, and at the end the metadata and the cursors, so that the target is a log only once it is whole. `run.py` runs a
copy: it begins, resumes after an interruption, follows the writer, and cuts over.
"""

from wal.operate.copying.run import CopyProgress, CopyResult, copy

__all__ = ["CopyProgress", "CopyResult", "copy"]
