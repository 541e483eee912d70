"""The media of message streams. Each file is imported only when its medium is used, since some need a package of their own.

A medium gives a producer and a consumer for each channel, which speak in ids of their own; what lies between, such as the books of what a
Pulsar consumer has handed over, is the medium's concern. Of RocksMQ one instance for a directory is shared by all streams of a process.
"""
