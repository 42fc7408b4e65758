"""The demo: local AWS, an embedded API server, played kubelets and the real broker, on one machine.

A package of its own because only the demo uses both servers. The broker imports nothing of it.
"""
