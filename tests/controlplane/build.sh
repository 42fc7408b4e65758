#!/bin/sh
# Builds etcd, kube-apiserver and kube-scheduler from their Go modules into a folder
# (first argument; .cache/controlplane/bin under the repository otherwise).
# Does nothing when the folder already holds what go.mod, go.sum and cmd/ ask for.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../.cache/controlplane/bin}

command -v go >/dev/null || {
    echo "building the control plane needs Go $(sed -n 's/^go //p' "$here/go.mod") or later on PATH;" \
        "or set KUBEBUILDER_ASSETS to a folder that holds etcd and kube-apiserver" >&2
    exit 1
}

mkdir -p "$bin"
bin=$(cd "$bin" && pwd)
cd "$here"
want=$(cat build.sh go.mod go.sum cmd/*/main.go | sha256sum | cut -d' ' -f1)
if [ "$want" = "$(cat "$bin/.built-from" 2>/dev/null || true)" ]; then
    exit 0
fi

version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
minor=${version#v1.}
minor=${minor%%.*}
pkg=k8s.io/component-base/version
# Without a version kubectl cannot parse what the server says it is.
flags="-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=$minor"
echo "building etcd, kube-apiserver and kube-scheduler $version into $bin (about three minutes the first time)"
for program in etcd kube-apiserver kube-scheduler; do
    CGO_ENABLED=0 nice go build -buildvcs=false -trimpath -ldflags "$flags" -o "$bin/$program" "./cmd/$program"
done
printf '%s\n' "$want" >"$bin/.built-from"
