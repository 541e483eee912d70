"""The media of message streams. Each file is imported only when its medium is used, since some need a package of their own.

Files:

* memory: the memory of this process
* pulsar: topics of Pulsar
* pulsar_producer, pulsar_consumer: one topic of Pulsar
* pulsar_ids: ids of messages on Pulsar
"""
