"""What the command line does, a module a command: each gets its clients and prints what it finds."""
