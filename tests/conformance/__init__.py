"""The embedded API server compared with the real one: check by check, and by random requests in lockstep."""
