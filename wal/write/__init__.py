"""One pchannel: the actors that write it, the scanners that read it, and the pure tables of both.

An operation goes from `VChannel` into a submission, with others of its turn into a frame, and from `FramePipeline` to the backend.

The write path, in the order of an append:

* operations     what callers tell a vchannel actor
* in_flight      InFlight: the bound on bytes that were accepted and are not yet durable
* vchannel       VChannel: decides about the operations on one vchannel
* submissions    what waits for the next frame, and how its callers get the outcome
* append_submissions  consecutive appends of a turn, plain or keyed, as one of these
* pipeline       FramePipeline: from submission to durable frame; here a frame is handed to the backend
* tick_supply    TickSupply: ticks from the oracle, and the operations that wait for more of them
* promised_tick  PromisedTick, BarrierHeap, TickFrames: the tick up to which the log is complete, and what waits for it (pure)
* txn_table      TxnTable: open transactions, their bounds, and the clock of their leases (pure)
* pchannel       PChannel: what the vchannels of a group share; start, failure and end

Idempotency keys, copies of broadcasts, and last events:

* idempotency/   which keys are remembered, and what a duplicate is (pure)
* keyed_writes   KeyedWrites: the callers of keyed appends
* append_copies  AppendCopies: copies of a broadcast, from the call to the outcome
* copies         CopyTable: which broadcasts have copies in the log (pure)
* copies_state   the bytes of that table in a checkpoint (pure)
* copy_writes    CopyWrites: writes copies into the log
* last_events    LastEvents: the last event of each vchannel, and the bytes of that table in a checkpoint (pure)

Recovery:

* checkpoint     CheckpointLedger: when a checkpoint is due (pure)
* checkpointer   Checkpointer: takes it
* pieces         the form of the state in a checkpoint (pure)
* recovery       RecoveryState: the state that survives restarts, and how it is recovered

Reading:

* readable       ReadablePChannel: what a scanner needs of a pchannel, whichever process writes it
* tail           Tail: the end of the log as readers see it, and how they wait for it to advance
* page_reads     PageReads: the pages that scanners fetch, a few at a time, one for all that want it
* recent         RecentFrames: the newest frames, for readers at the tail
* scanner        Scanner: a reader, as its caller holds it
* read_loop      ReadLoop: the machinery of a scanner: its pages, its waiting, its cursor, its end
* handler        the handlers of scanners that run by themselves, and the actor that runs them
* acking         AckingScanner: a scanner that acknowledges copies of broadcasts
* read_only      ReadOnlyPChannel: a pchannel that another process writes
"""
