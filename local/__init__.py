"""AWS, a Kubernetes API and the demo on one machine. No broker in a cluster needs it."""
