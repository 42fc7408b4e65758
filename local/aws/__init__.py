"""AWS on a laptop: moto, extended with EC2's capacity reservations, for any AWS client.

In process, `install()` comes once before moto's first request, then `moto.mock_aws` as usual. As a server:
`python -m local.aws --port 5000`, or

    with LocalAws() as aws:
        ec2 = boto3.client("ec2", endpoint_url=aws.endpoint, region_name="us-east-1", ...)
        aws.control.fault(action="CreateFleet", stage="launch", code="InsufficientInstanceCapacity",
                          match={"InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-1a"}, times=-1)

`Control` is the same control plane over HTTP (`Control(endpoint)`) and in process (`Control()`);
`local.aws.control` lists its methods.

Everything here is written from AWS's documentation and shares no rule with the rest of the project, so that
a wrong reading on one side shows up against the other.
"""

from local.aws.assembly import install
from local.aws.control import Control
from local.aws.server import LocalAws

__all__ = ["Control", "LocalAws", "install"]
