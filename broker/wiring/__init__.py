"""Each `add_<room>` builds the loops of a room and declares their triggers: which changes enqueue which keys.

Invariant: nothing is decided here, and no loop declares a trigger elsewhere.
"""
