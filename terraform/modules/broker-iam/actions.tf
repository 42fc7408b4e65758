# Every permission that the broker has, by what it does with it, and no other: each is called by the broker, or
# needed by what it calls. policy.tf says on which resources and under which conditions.
#
# Not here, since the broker does not do it: to buy Capacity Blocks, to split, move or share reservations.

locals {
  actions = {
    # Looks at the account, on every poll.
    read_ec2 = [
      "ec2:DescribeCapacityBlockExtensionHistory",
      "ec2:DescribeCapacityReservations",
      "ec2:DescribeImages",
      "ec2:DescribeInstanceTypeOfferings",
      "ec2:DescribeInstanceTypes",
      "ec2:DescribeInstances",
      "ec2:DescribeInstanceStatus",
      "ec2:DescribeLaunchTemplates",
      "ec2:DescribePlacementGroups",
      "ec2:DescribeSecurityGroups",
      "ec2:DescribeSpotPriceHistory",
      "ec2:DescribeSubnets",
    ]
    # A group may be defined by tags or by a stack, and the call needs the rights to read both. A group's tags say
    # which CapacityReservation it belongs to.
    read_groups = [
      "cloudformation:DescribeStacks",
      "cloudformation:ListStackResources",
      "resource-groups:GetTags",
      "resource-groups:ListGroupResources",
      "tag:GetResources",
    ]
    # Endpoint and CA of the cluster, once at the start.
    read_cluster = ["eks:DescribeCluster"]

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
    change_templates = ["ec2:DeleteLaunchTemplate"]

    tag = ["ec2:CreateTags"]
    # Marks the reservations that an EC2NodeClass of Karpenter's selects by tag.
    mark = ["ec2:CreateTags", "ec2:DeleteTags"]
    # Ends the instances of claims that end, and reboots broken ones.
    terminate = [
      "ec2:RebootInstances",
      "ec2:TerminateInstances",
    ]

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
    # Finds those that it made, and deletes them with the class. IAM lists all of an account's or none.
    list_profiles = ["iam:ListInstanceProfiles"]
    delete_profiles = [
      "iam:DeleteInstanceProfile",
      "iam:RemoveRoleFromInstanceProfile",
    ]
  }

  # With manage_reservations alone: for CapacityReservations whose policy is Manage.
  managing = {
    reserve = ["ec2:CreateCapacityReservation"]
    change_reservations = [
      "ec2:CancelCapacityReservation",
      "ec2:ModifyCapacityReservation",
    ]
    look_at_groups = [
      "resource-groups:GetGroup",
      "resource-groups:GetGroupConfiguration",
    ]
    # The call that makes a group tags it, which needs both.
    create_groups = ["resource-groups:CreateGroup"]
    tag_groups    = ["resource-groups:Tag"]
    change_groups = [
      "resource-groups:DeleteGroup",
      "resource-groups:GroupResources",
      "resource-groups:PutGroupConfiguration",
      "resource-groups:UngroupResources",
    ]
  }
}
