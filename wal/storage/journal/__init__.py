"""The journal backend: segment files on one host, with one writer for each pchannel and concurrent readers.

Files, from the bottom up:

* layout:              the bytes of segment headers and envelopes, and how positions map to them. Pure
* index, index_part:   the positions of the frames of one segment; the bytes of a stored index. Pure
* linux_aio:           one write at a time that the kernel carries out while the process goes on
* disk:                the few calls on which durability rests
* segment:             one file of the log, read frame by frame
* segments:            the segments of one log, and the index of each
* control, fence:      the page with the numbers that change with every frame, and its lock
* lineage:             the restores that a log has gone through
* preparer:            the thread that prepares the next segment
* directory:           FORMAT, LOCK, permissions, and a new log
* active:              the segment that is being written, and its stored index
* log_tail:            the end of the log, and the steps that add a frame to it
* loop_path, thread_path:  the two ways of a frame to the disk: from the event loop, or by a thread
* write_path:          the setting that chooses between them
* writer:              the order of the frames and of their outcomes, and which way each goes
* recovery:            which files of the last writer are trusted, and what is repaired
* checkpoint:          checkpoint files, and room for the next one
* truncation:          where the log begins, and what happens to the segments below
* reader:              pages of frames from the segments
* statistics:          the counters of one open log
* log, backend:        one open log; the directory with all of them
* read_only, read_only_segments:  a journal of another process, open for reading
"""
