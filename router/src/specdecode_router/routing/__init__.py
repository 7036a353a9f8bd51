"""Which engine gets a request: pure functions and small state machines, without I/O and clock."""
