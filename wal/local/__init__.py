"""The local log: the engine of a log that this process writes.

Files:

* log:             the parts of the log, and the order in which they are opened and closed
* storage:         where frames and metadata are kept
* vchannels:       the vchannels and the actor of each; how one is created and dropped
* channels:        the channel service: how channels are created and destroyed
* appends:         how messages reach the actors
* txn_appends:     how transactions reach the actors
* txn:             an open transaction
* copies_operator: the log as its broadcaster sees it
* copy_routes:     a cache of the pchannels that the vchannels of broadcasts are on
* restored:        notes that a journal was restored from a copy
* announcements:   the lines that the log writes when it is opened and closed
"""
