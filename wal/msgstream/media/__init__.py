"""The media of message streams. Each file is imported only when its medium is used, since some need a package of their own.

Files:

* memory: the memory of this process
* pulsar: topics of Pulsar
* pulsar_producer, pulsar_consumer: one topic of Pulsar
* pulsar_subscription: how a consumer subscribes
* pulsar_books: what a consumer has received, and what of it is handled
* pulsar_ids: ids of messages on Pulsar. Pure
* rocksmq: RocksMQ, a consumer group for each subscription
* rocksmq_subscription: what the streams of this process have of a consumer group. Pure
* shared_rocksmq: the RocksMQ of a directory, open once for all streams of this process
* wal: a log of this project, a cursor for each subscription
* wal_consumer: the reading of one vchannel
* wal_grid: the ticks at which a time-ticked stream over a log is cut. Pure
* wal_ids: the ids of a log's messages and ticks in streams. Pure
"""
