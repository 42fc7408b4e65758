"""AWS, a Kubernetes API, the demo and the generators of checked-in files. No broker in a cluster needs it."""
