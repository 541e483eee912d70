"""The broadcaster: one message to many vchannels (its room is reserved; the broadcaster itself is not built yet)."""
