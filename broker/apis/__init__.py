"""Typed Kubernetes objects, one module an API group; the CRDs in `crds/` are generated from them."""
