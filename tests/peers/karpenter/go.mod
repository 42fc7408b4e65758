// The unmodified Karpenter that the tests run beside the broker, pinned with everything it is built from.
module capacity-broker/tests/peers/karpenter

go 1.26.10

// From the Go module proxy, on machines with an older Go: build.sh allows it.
toolchain go1.27.3

require github.com/aws/karpenter-provider-aws v1.15.1

// The module proxy has no archives of the versions that the provider asks for.
replace (
	github.com/aws/aws-sdk-go-v2/service/timestreamwrite => github.com/aws/aws-sdk-go-v2/service/timestreamwrite v1.36.2
	sigs.k8s.io/karpenter => sigs.k8s.io/karpenter v1.15.0
)
