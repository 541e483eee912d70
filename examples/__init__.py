"""Programs to read and to run: each shows one use of the log, and each is run by the tests."""
