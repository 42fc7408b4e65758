"""The commands of the command line, by question: each gets its clients and prints its result."""
