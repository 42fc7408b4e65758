"""The stored state of each release: its definitions, and objects as its broker left them, with EC2's side."""
