"""IAM's decisions about calls, once moto enforces it: actions of a caller on a resource.

moto's own decision knows actions alone: under it a policy that names a resource, or has a condition, allows
nothing at all.
"""
