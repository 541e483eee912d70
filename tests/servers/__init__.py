"""Real servers for tests, the demo and benchmarks: installed once, started on free loopback ports, and always stopped."""
