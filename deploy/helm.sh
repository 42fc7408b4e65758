#!/bin/sh
# Lints the chart, renders it, and has an API server take the manifests with strict field validation.
# Helm comes from PATH, else from .cache/bin, else it is built there from its Go module.
# `sh deploy/helm.sh --find` only prints where Helm is.
set -eu
cd "$(dirname "$0")/.."
version=v3.22.0
chart=deploy/chart/capacity-broker
bin=$PWD/.cache/bin

if helm=$(command -v helm); then
    :
elif [ -x "$bin/helm" ]; then
    helm=$bin/helm
elif command -v go >/dev/null; then
    echo "building helm $version into $bin (a minute or two, once)" >&2
    mkdir -p "$bin"
    GOBIN=$bin CGO_ENABLED=0 nice go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$version" >&2
    helm=$bin/helm
else
    echo "no helm: put Helm 3 on PATH, or Go 1.26 or later with which to build it" >&2
    exit 1
fi
if [ "${1:-}" = --find ]; then
    echo "$helm"
    exit 0
fi

# The oldest Kubernetes that the chart allows, and one of today.
for kubernetes in 1.29.0 1.36.0; do
    "$helm" lint --strict --quiet --kube-version "$kubernetes" --values "$chart/ci/values.yaml" "$chart"
done
"$helm" template capacity-broker "$chart" --namespace capacity-broker --kube-version 1.36.0 \
    --values "$chart/ci/values.yaml" | "${PYTHON:-.venv/bin/python}" -m tests.deploy.strict
