"""The journal backend: segment files on one host, with one writer for each pchannel and concurrent readers.

The `JournalWriter` takes one frame after the other and decides its way to the disk, from the event loop or by a thread; the `LogTail` has
the steps that add a frame to the segment being written, and a thread prepares the next one. The control page shows the numbers that change
with every frame to readers, and fences writers by the term in it. `recovery.py` decides what of the last writer is trusted. Readers, here
and in other processes, take pages of frames from the segments, with an index that tells them which frames they want; those that want
columns take many frames at once as rows.
"""
