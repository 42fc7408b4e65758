#!/bin/sh
# Builds koord-scheduler, as released and unmodified, from its module into a folder
# (first argument; .cache/peers/bin under the repository otherwise), with its CRDs beside it.
# Its own go.mod and go.sum pin everything that it is built from.
# Does nothing when the folder already holds what this file asks for.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../../.cache/peers/bin}
module=github.com/koordinator-sh/koordinator
version=v1.6.1
sum=h1:8PW6JxGaicJUSjRgwdwQavnzYpruU3zZUDyQH59upD8=

command -v go >/dev/null || {
    echo "building koord-scheduler needs Go on PATH" >&2
    exit 1
}

mkdir -p "$bin"
bin=$(cd "$bin" && pwd)
want=$(sha256sum <"$here/build.sh" | cut -d' ' -f1)
if [ "$want" = "$(cat "$bin/.koordinator-built-from" 2>/dev/null || true)" ]; then
    exit 0
fi

echo "building koord-scheduler ${version#v} into $bin (about six minutes the first time)"
cd /
download=$(GOFLAGS= go mod download -json $module@$version)
got=$(printf '%s\n' "$download" | sed -n 's/.*"Sum": "\(.*\)".*/\1/p')
[ "$got" = "$sum" ] || {
    echo "$module@$version has the checksum $got, not $sum" >&2
    exit 1
}
cd "$(printf '%s\n' "$download" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')"
CGO_ENABLED=0 nice go build -buildvcs=false -mod=readonly -trimpath -ldflags "-s -w" \
    -o "$bin/koord-scheduler" ./cmd/koord-scheduler
rm -rf "$bin/koordinator-crds"
cp -R config/crd/bases "$bin/koordinator-crds"
chmod -R u+w "$bin/koordinator-crds"
printf '%s\n' "$want" >"$bin/.koordinator-built-from"
