"""Disrupts nodes of the broker's NodePools: empty, expired and drifted ones, and those whose pods could move
into a free reserved slot.

`controller` runs one pass. `snapshot` reads claims with their nodes, pods and pools; `drift` and `conditions`
judge them; `candidates` selects the nodes that may be disrupted; `replacements` builds claims that take over
pods; `moves` waits for these and then ends the old claims; `returning` selects moves into free slots.

Source: Karpenter 1.14, pkg/controllers/disruption and pkg/controllers/nodeclaim/disruption.
"""
