"""The idempotency keys of a pchannel: what they are, which are remembered, and their bytes. Pure.

Files:

* table      IdempotencyTable: the keys that were seen, and the first result of each
* producers  Producers: the last sequence of each producer, and the gaps that failed sequences leave
* scopes     Scopes: the vchannels that keys belong to; Claim: a pending key; KeyWindow: the plain keys that are remembered
* keys       keys as callers give them, and as the frames of a log carry them
* state      the remembered keys in a recovery checkpoint
"""
