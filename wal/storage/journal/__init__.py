"""The journal backend: segment files on one host, with one writer for each pchannel and concurrent readers.

The `JournalWriter` takes one frame after the other and decides its way to the disk, from the event loop or by a thread. The `LogTail` has
the steps that add a frame to the segment being written, and a thread prepares the next one. The control page shows readers the numbers that
change with every frame, and fences writers by the term in it. `recovery.py` decides which files of the last writer are trusted. Readers,
here and in other processes, take pages of frames from the segments, and an index selects the frames. Readers of columns take many frames at
once as rows.
"""
