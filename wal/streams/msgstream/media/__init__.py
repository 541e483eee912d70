"""The media of message streams. Each file is imported only when its medium is used, since some need a package of their own.

A medium has a producer and a consumer for each channel, whose ids only the medium interprets. The rest is internal to the medium, such as
the records of messages that a Pulsar consumer has delivered. All streams of a process share one RocksMQ instance for a directory.
"""
