# On which resources and under which conditions each list of actions.tf is allowed.

locals {
  of_region = startswith(var.region, "cn-") ? "aws-cn" : startswith(var.region, "us-gov-") ? "aws-us-gov" : "aws"
  partition = var.partition == null ? local.of_region : var.partition

  ec2     = "arn:${local.partition}:ec2:${var.region}"
  groups  = [for name in var.reservation_group_names : "arn:${local.partition}:resource-groups:${var.region}:${var.account_id}:group/${name}"]
  made    = { StringEquals = { "aws:RequestTag/${var.ownership_tag}" = var.cluster_name } }
  owned   = { StringEquals = { "aws:ResourceTag/${var.ownership_tag}" = var.cluster_name } }
  here    = { StringEquals = { "aws:RequestedRegion" = var.region } }
  to_ec2  = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
  profile = "arn:${local.partition}:iam::${var.account_id}:instance-profile/*"
  # A cluster's name has no dot, so the prefix of `demo` covers nothing of `demo-eu`.
  prefix       = "capacity-broker.${var.cluster_name}."
  own_profiles = ["arn:${local.partition}:iam::${var.account_id}:instance-profile/${local.prefix}*"]
  own_groups   = ["arn:${local.partition}:resource-groups:${var.region}:${var.account_id}:group/${local.prefix}*"]
  odcrs        = "${local.ec2}:${var.account_id}:capacity-reservation/*"

  always = [
    {
      Sid       = "Read"
      Action    = concat(local.actions.read_ec2, local.actions.read_groups)
      Resource  = ["*"]
      Condition = local.here
    },
    {
      Sid       = "ReadCluster"
      Action    = local.actions.read_cluster
      Resource  = ["arn:${local.partition}:eks:${var.region}:${var.account_id}:cluster/${var.cluster_name}"]
      Condition = {}
    },
    {
      Sid       = "ReadPublishedImages"
      Action    = local.actions.read_parameters
      Resource  = concat(["arn:${local.partition}:ssm:${var.region}::parameter/aws/service/*"], var.ssm_parameter_arns)
      Condition = local.here
    },
    {
      Sid       = "ReadPrices"
      Action    = local.actions.read_prices
      Resource  = ["*"]
      Condition = {}
    },
    {
      Sid       = "ReadNotices"
      Action    = local.actions.read_notices
      Resource  = compact([var.interruption_queue_arn])
      Condition = {}
    },
    {
      # What a launch uses, or makes beside the instance. A shared reservation, image or subnet is another account's.
      Sid    = "LaunchFrom"
      Action = local.actions.launch
      Resource = [
        "${local.ec2}::image/*",
        "${local.ec2}::snapshot/*",
        "${local.ec2}:*:image/*",
        "${local.ec2}:*:snapshot/*",
        "${local.ec2}:*:subnet/*",
        "${local.ec2}:*:capacity-reservation/*",
        "${local.ec2}:*:security-group/*",
        "${local.ec2}:${var.account_id}:placement-group/*",
        "${local.ec2}:${var.account_id}:key-pair/*",
        "${local.ec2}:${var.account_id}:network-interface/*",
        "${local.ec2}:${var.account_id}:spot-instances-request/*",
      ]
      Condition = local.here
    },
    {
      Sid       = "LaunchFromGroups"
      Action    = local.actions.launch_into_groups
      Resource  = local.groups
      Condition = local.here
    },
    {
      Sid       = "LaunchByOwnTemplates"
      Action    = local.actions.launch
      Resource  = ["${local.ec2}:${var.account_id}:launch-template/*"]
      Condition = local.owned
    },
    {
      # What a launch makes carries the tag from the first moment, or is not made.
      Sid    = "LaunchTagged"
      Action = local.actions.launch
      Resource = [
        "${local.ec2}:${var.account_id}:fleet/*",
        "${local.ec2}:${var.account_id}:instance/*",
        "${local.ec2}:${var.account_id}:volume/*",
      ]
      Condition = local.made
    },
    {
      Sid       = "CreateTaggedTemplates"
      Action    = local.actions.create_templates
      Resource  = ["${local.ec2}:${var.account_id}:launch-template/*"]
      Condition = local.made
    },
    {
      Sid       = "ChangeOwnTemplates"
      Action    = local.actions.change_templates
      Resource  = ["${local.ec2}:${var.account_id}:launch-template/*"]
      Condition = local.owned
    },
    {
      Sid    = "TagWhatIsMade"
      Action = local.actions.tag
      Resource = [
        "${local.ec2}:${var.account_id}:fleet/*",
        "${local.ec2}:${var.account_id}:instance/*",
        "${local.ec2}:${var.account_id}:volume/*",
        "${local.ec2}:${var.account_id}:launch-template/*",
      ]
      Condition = {
        StringEquals = {
          "aws:RequestTag/${var.ownership_tag}" = var.cluster_name
          "ec2:CreateAction"                    = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]
        }
      }
    },
    {
      # A launch gives interfaces and spot requests the tags of the EC2NodeClass only.
      Sid    = "TagInterfacesAtLaunch"
      Action = local.actions.tag
      Resource = [
        "${local.ec2}:${var.account_id}:network-interface/*",
        "${local.ec2}:${var.account_id}:spot-instances-request/*",
      ]
      Condition = { StringEquals = { "ec2:CreateAction" = ["CreateFleet", "RunInstances"] } }
    },
    {
      # Later tags, of own instances only, and never over the tags that name their cluster.
      Sid      = "TagOwnInstances"
      Action   = local.actions.tag
      Resource = ["${local.ec2}:${var.account_id}:instance/*"]
      Condition = merge(local.owned, {
        "ForAllValues:StringNotEquals" = { "aws:TagKeys" = [var.ownership_tag, "capacity-broker.io/cluster-uid"] }
      })
    },
    {
      # Of reservations only the tags by which Karpenter's selector terms find them, and never all tags at once.
      Sid      = "MarkReservations"
      Action   = local.actions.mark
      Resource = [local.odcrs]
      Condition = {
        "ForAllValues:StringLike" = { "aws:TagKeys" = ["capacity-broker.io/advised/${var.cluster_name}/*"] }
        Null                      = { "aws:TagKeys" = "false" }
      }
    },
    {
      Sid       = "TerminateOwnInstances"
      Action    = local.actions.terminate
      Resource  = ["${local.ec2}:${var.account_id}:instance/*"]
      Condition = local.owned
    },
    {
      Sid       = "PassNodeRoles"
      Action    = local.actions.pass_role
      Resource  = var.node_role_arns
      Condition = local.to_ec2
    },
    {
      Sid       = "ReadInstanceProfiles"
      Action    = local.actions.read_profiles
      Resource  = concat([local.profile], var.node_role_arns)
      Condition = {}
    },
    {
      Sid       = "CreateTaggedInstanceProfiles"
      Action    = local.actions.create_profiles
      Resource  = local.own_profiles
      Condition = local.made
    },
    {
      Sid       = "FillOwnInstanceProfiles"
      Action    = local.actions.fill_profiles
      Resource  = local.own_profiles
      Condition = local.owned
    },
    {
      Sid       = "ListInstanceProfiles"
      Action    = local.actions.list_profiles
      Resource  = ["*"]
      Condition = {}
    },
    {
      Sid       = "DeleteOwnInstanceProfiles"
      Action    = local.actions.delete_profiles
      Resource  = local.own_profiles
      Condition = local.owned
    },
  ]

  manage = [
    {
      # What is reserved carries the tag from the first moment, or is not reserved.
      Sid       = "ReserveTagged"
      Action    = local.managing.reserve
      Resource  = [local.odcrs]
      Condition = local.made
    },
    {
      Sid       = "TagWhatIsReserved"
      Action    = local.actions.tag
      Resource  = [local.odcrs]
      Condition = { StringEquals = merge(local.made.StringEquals, { "ec2:CreateAction" = "CreateCapacityReservation" }) }
    },
    {
      Sid       = "ChangeOwnReservations"
      Action    = local.managing.change_reservations
      Resource  = [local.odcrs]
      Condition = local.owned
    },
    {
      Sid       = "LookAtGroups"
      Action    = local.managing.look_at_groups
      Resource  = ["*"]
      Condition = local.here
    },
    {
      # CreateGroup has no resource types.
      Sid       = "CreateTaggedGroups"
      Action    = local.managing.create_groups
      Resource  = ["*"]
      Condition = local.made
    },
    {
      Sid       = "TagOwnGroups"
      Action    = local.managing.tag_groups
      Resource  = local.own_groups
      Condition = local.made
    },
    {
      Sid       = "ChangeOwnGroups"
      Action    = local.managing.change_groups
      Resource  = local.own_groups
      Condition = local.owned
    },
    {
      # Launches may target what the broker reserved by its group, whatever reservation_group_names says.
      Sid       = "LaunchFromOwnGroups"
      Action    = local.actions.launch_into_groups
      Resource  = local.own_groups
      Condition = local.here
    },
  ]

  # Two policies, since one may have 6,144 characters.
  policies = {
    for name, statements in { always = local.always, manage = local.manage } : name => jsonencode({
      Version = "2012-10-17"
      Statement = [
        for statement in statements : merge(
          { for key, value in statement : key => value if key != "Condition" || length(value) > 0 },
          { Effect = "Allow" },
        )
        if length(statement.Resource) > 0
      ]
    })
  }
}
