"""What serves an open log: `local/` in this process, `read_only/` over the log of another process."""
