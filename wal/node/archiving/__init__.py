"""Archiving: copies the durable part of a journal into an archive, beside its writer.

`rounds.py` makes manifests, one after the other, each with what is new in the log, and `forgetting.py` removes the oldest ones.
"""
