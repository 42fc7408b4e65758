"""What IAM decides about calls, once moto is told to enforce it: who may do what to which resource.

moto's own decision knows actions alone: under it a policy that names a resource, or has a condition, allows
nothing at all.
"""
