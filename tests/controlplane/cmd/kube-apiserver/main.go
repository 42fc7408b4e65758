// Command kube-apiserver is Kubernetes's API server, built from its module.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "time/tzdata" // CronJob time zones, as in the released binary

	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
