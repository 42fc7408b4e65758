"""The demo: local AWS, an embedded API server, played kubelets and the real broker, on one machine.

A room of its own because it alone knows both servers; nothing of it is imported by the broker.
"""
