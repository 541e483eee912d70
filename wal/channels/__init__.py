"""Channels: the pchannels and vchannels of a log. The KV is the only source of truth; the maps are copies for other processes.

`metadata.py` opens the KV that the settings name, and has the roots of its records. `pchannels.py` has the records of pchannels, their
terms and checkpoints; the `VChannelDirectory` those of vchannels, in memory and as saved. A channel is a vchannel with a generated name and
an owner (`owners.py`). A pchannel's map is a file that shows its vchannels to other processes; the `VChannelMapKeeper` decides when it is
written.
"""
