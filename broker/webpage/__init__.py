"""The web page: short pools, idle slots, waiting claims and the history, in a browser."""
