"""The actor runtime; it knows nothing of logs."""
