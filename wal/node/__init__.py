"""A node: the services of a process that serves pchannels to clients over the network. Needs the extra `cluster`.

Nothing in it assumes that there is only one node: a request names a pchannel and its term, and `Hosted` says whether it is here.

Files, from the bottom up:

* hosted:            the pchannels that this process serves, each in its term
* draining:          the end of a node: what is refused, and what is waited for
* states:            the state of the component, and gRPC's health
* tails:             the end of a hosted pchannel's log, as clients see it
* discovery:         AssignmentDiscover: which pchannels are on which node
* sessions:          the newest Produce stream of each session of a client
* fence:             executes no change that its client has given up
* log_check:         refuses the calls of a client that opened another log
* answers:           what became known of a Produce stream's requests
* slices:            work in slices, so that no request keeps the loop
* requests:          the requests of a Produce stream, until the node is stopping
* places:            which vchannels a Produce stream may name
* withdrawals:       the appends of a Produce stream that its client may withdraw
* produce_txns:      transactions whose bodies a client keeps until the commit
* message_txns:      transactions whose messages come one by one, in the contract's form
* produce:           one Produce stream, on which a client appends
* produce_service:   Produce: opens the streams
* frame_feed:        one Consume stream in the form of frames
* message_feed:      one Consume stream in the contract's form, message by message
* tick_rounds:       tells the idle streams of Consume of promised ticks, a few at a time
* consume:           Consume: the streams on which clients read
* frame_search:      searches in the frames of a log, for questions about the past
* frame_calls:       reads of frames, and questions about them
* cursor_calls:      loads, saves, lists and deletes cursors
* pchannel_service:  PChannelService: the calls that belong to one pchannel
* vchannel_calls:    creates, ends, finds, lists and watches vchannels and channels
* broadcast_calls:   the calls of the broadcaster
* log_service:       LogService: the calls that belong to the log as a whole
* bounds:             what the clients of a node may have under way, accounted in one place
* process:             how many connections a node may have, so that the log can open its files; freed memory
* access:            who may reach the node: its address, TLS, tokens
* services:          all services of a node: a new one is added there
* node:              a node: its port, from start to close
"""
