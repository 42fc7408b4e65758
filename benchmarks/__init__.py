"""The broker's figures, measured: `python -m benchmarks.X`, or `make bench`.

Every module prints one table: the figure, its target, the measured value, and the value of a plain baseline
in the same run. Wall time and CPU time are both reported, since a machine may be shared. `--small` is a size
for trying out; its figures mean nothing.
"""
