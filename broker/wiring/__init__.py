"""The triggers of every loop: which changes enqueue which keys. Some loops are built beside theirs.

Invariant: nothing is decided here, and no loop declares a trigger elsewhere.
"""
