"""Copying a log into another, empty one: between journals and Pulsar, also onto another number of pchannels.

`source.py` reads the log that is copied, beside its writer, as one stream of frames in the order of their ticks; `served.py` reads one that
is on the network. `cutting.py` decides on which pchannel of the target each vchannel goes, and cuts each frame accordingly; it is pure.
`target.py` writes the frames with the ticks that they have, and in the end the metadata and the cursors, so that the target is a log only
once it is whole. `run.py` is the course of a copy: it begins, goes on after an interruption, follows the writer, and cuts over.
"""

from wal.operate.copying.run import CopyProgress, CopyResult, copy

__all__ = ["CopyProgress", "CopyResult", "copy"]
