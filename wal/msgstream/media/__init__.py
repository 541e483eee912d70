"""The media of message streams. Each file is imported only when its medium is used, since some need a package of their own.

Files:

* memory: the memory of this process
"""
