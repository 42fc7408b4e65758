#!/bin/sh
# Builds Karpenter, as released and unmodified, from its module into a folder
# (first argument; .cache/peers/bin under the repository otherwise), with its CRDs beside it. KARPENTER=1.14
# builds the release that the folder of this name pins, into .cache/peers/1.14.
# Does nothing when the folder already holds what go.mod and go.sum ask for.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../../.cache/peers/${KARPENTER:-bin}}
module=github.com/aws/karpenter-provider-aws

command -v go >/dev/null || {
    echo "building Karpenter needs Go 1.21 or later on PATH" >&2
    exit 1
}

# Where go.mod asks for a newer Go than this machine has, that comes from the Go module proxy, as modules do.
export GOTOOLCHAIN=auto

mkdir -p "$bin"
bin=$(cd "$bin" && pwd)
cd "$here/${KARPENTER:-.}"
want=$(cat "$here/build.sh" go.mod go.sum | sha256sum | cut -d' ' -f1)
if [ "$want" = "$(cat "$bin/.built-from" 2>/dev/null || true)" ]; then
    exit 0
fi

version=$(go list -m -f '{{.Version}}' $module)
echo "building Karpenter $version into $bin (about three minutes the first time)"
CGO_ENABLED=0 nice go build -buildvcs=false -trimpath -ldflags "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version=${version#v}" \
    -o "$bin/karpenter" $module/cmd/controller
rm -rf "$bin/crds"
cp -R "$(go list -m -f '{{.Dir}}' $module)/pkg/apis/crds" "$bin/crds"
chmod -R u+w "$bin/crds"
printf '%s\n' "$want" >"$bin/.built-from"
