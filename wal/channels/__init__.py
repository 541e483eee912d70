"""Channels: the pchannels and vchannels of a log. The KV is the only source of truth; the maps are copies for other processes.

Files:

* pchannels:    the records of pchannels and of their checkpoints in the KV
* owners:       the owner of a channel: its texts and their bounds
* vchannels:    the names of vchannels, the pchannel of each, and the warning for a reader of an unknown one
* directory:    the records of vchannels in the KV, in memory and as saved
* service:      channels, which are vchannels with a generated name and an owner: the checks and the meaning of their calls
* vchannel_map: the file that shows a pchannel's vchannels to other processes: its bytes, and the view of all maps together
* map_keeper:   decides when these files are written
"""
