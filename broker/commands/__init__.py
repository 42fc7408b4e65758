"""The commands of the command line, one module each: each gets its clients and prints its result."""
