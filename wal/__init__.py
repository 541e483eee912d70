"""The write-ahead log that asyncio services embed."""
