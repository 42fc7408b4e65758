"""The figures that the broker is to hold, measured: `python -m benchmarks.X`, or `make bench`.

Every module prints one table: the figure, what is wanted, what was measured, and what a plain way of doing
the same came to in the same run. Wall time and CPU time are both told, since a machine may be shared;
`--small` is a size for trying out, whose figures mean nothing.
"""
