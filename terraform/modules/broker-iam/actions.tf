# Every permission that the broker has, by what it does with it. policy.tf says on which resources and under which
# conditions; nothing is allowed that is not listed here.
#
# Not here, since the broker does not do it: to create, change, cancel, buy, split, move or share reservations.

locals {
  actions = {
    # Looks at the account, on every poll.
    read_ec2 = [
      "ec2:DescribeAvailabilityZones",
      "ec2:DescribeCapacityReservations",
      "ec2:DescribeFleets",
      "ec2:DescribeImages",
      "ec2:DescribeInstanceTypeOfferings",
      "ec2:DescribeInstanceTypes",
      "ec2:DescribeInstances",
      "ec2:DescribeLaunchTemplateVersions",
      "ec2:DescribeLaunchTemplates",
      "ec2:DescribePlacementGroups",
      "ec2:DescribeSecurityGroups",
      "ec2:DescribeSpotPriceHistory",
      "ec2:DescribeSubnets",
      "ec2:GetCapacityReservationUsage",
      "ec2:GetGroupsForCapacityReservation",
    ]
    read_groups = [
      "resource-groups:GetGroup",
      "resource-groups:GetGroupConfiguration",
      "resource-groups:ListGroupResources",
      "resource-groups:ListGroupingStatuses",
      "resource-groups:ListGroups",
    ]
    # Finds the AMI that an alias or an ssm selector stands for.
    read_parameters = ["ssm:GetParameters"]

    # What an hour of each type costs; AWS's price list knows neither resources nor Regions.
    read_prices = ["pricing:GetProducts"]

    # EC2's notices that an instance is about to end, from one queue.
    read_notices = [
      "sqs:DeleteMessage",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
    ]

    # Launches. CreateFleet calls RunInstances as the broker, so both are needed on the same resources.
    launch = [
      "ec2:CreateFleet",
      "ec2:RunInstances",
    ]
    # Launches that target a group read it as the broker as well.
    launch_into_groups = [
      "ec2:CreateFleet",
      "ec2:RunInstances",
      "resource-groups:ListGroupResources",
    ]

    create_templates = ["ec2:CreateLaunchTemplate"]
    change_templates = [
      "ec2:CreateLaunchTemplateVersion",
      "ec2:DeleteLaunchTemplate",
    ]

    tag = ["ec2:CreateTags"]
    # Marks the reservations that an EC2NodeClass of Karpenter's selects by tag.
    mark      = ["ec2:CreateTags", "ec2:DeleteTags"]
    terminate = ["ec2:TerminateInstances"]

    # Gives the nodes their role.
    pass_role = ["iam:PassRole"]
    # Finds, or makes, the instance profile of a class that names a role.
    read_profiles = [
      "iam:GetInstanceProfile",
      "iam:ListInstanceProfilesForRole",
    ]
    create_profiles = [
      "iam:CreateInstanceProfile",
      "iam:TagInstanceProfile",
    ]
    fill_profiles = ["iam:AddRoleToInstanceProfile"]
  }
}
