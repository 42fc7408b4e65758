"""The embedded API server held to the real one: check by check, and by random requests in lockstep."""
