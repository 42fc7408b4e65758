"""A real control plane for tests: etcd, kube-apiserver and kube-scheduler on this machine."""
