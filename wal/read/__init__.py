"""Reading: the options of a read, where it begins and ends, what it delivers, and the scanners that do it.

`Progress` is the pure machine of a read: it requests the next page, assembles messages from the frames, and decides where the
read begins, continues and ends. A `Scanner` drives it on an event loop, on a `ReadablePChannel`, which has the tail of the log and the
window of recent frames; by a pattern it drives one for each pchannel, and merges them by tick (`merged.py`). A log that another process
writes is read by the `ReadOnlyCore`, which asks the source of its backend and waits for nothing. `cursors` are saved positions, which hold
back retention.
"""
