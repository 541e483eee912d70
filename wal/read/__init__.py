"""Reading: the options of a read, where it begins and ends, and what it delivers. Pure and synchronous; every reader uses it.

Files, in the order in which a read meets them:

* options        the options of a read, checked: deliver policies and deliver filters
* start          where a read begins
* truncated      the first event of a log, whether it went back, and the errors of readers that this has overtaken
* progress       what a read needs next, what it has handed over, and where it ends
* position       the position of a reader, and the text that it resumes from
* selection      the vchannels that a reader reads, and their incarnations
* assembly       the messages of a frame
* shared_copies  the copies of a broadcast in a frame
* shared_messages  the messages that readers with the same selection share
* frame_rows     the rows of a frame, for readers that want columns instead of messages
* columns        the columns of such rows, packed for Arrow
"""
