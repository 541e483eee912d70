"""Archiving: copies the durable part of a journal into an archive, beside its writer.

`archiver.py` does so in the background for a log that is open with `archive=`. `rounds.py` makes manifests, one after the other, each with
the new part of the log, and `forgetting.py` removes the oldest ones.
"""
