locals {
  # One name a type and zone, unless it was given.
  flavors = {
    for key, r in var.reservations : key => coalesce(r.flavor, lower(replace("${r.instance_type}-${r.availability_zone}", ".", "-")))
  }
  owners = { for key, r in var.reservations : key => r.capacity_reservation == null ? var.capacity_reservation : r.capacity_reservation }

  # By these the broker knows whose a reservation is, without an id that somebody would copy.
  adoption = {
    for key, owner in local.owners : key => owner == null ? {} : {
      "capacity-broker.io/reservation" = owner
      "capacity-broker.io/flavor"      = local.flavors[key]
    }
  }
}

resource "aws_ec2_capacity_reservation" "this" {
  for_each = var.reservations

  instance_type           = each.value.instance_type
  instance_platform       = each.value.platform
  availability_zone       = each.value.availability_zone
  instance_count          = each.value.count
  instance_match_criteria = each.value.match_criteria
  tenancy                 = each.value.tenancy
  ebs_optimized           = each.value.ebs_optimized
  end_date                = each.value.end_date
  end_date_type           = each.value.end_date == null ? "unlimited" : "limited"
  tags                    = merge({ ManagedBy = "terraform" }, var.tags, { Name = each.key }, each.value.tags, local.adoption[each.key])
}

resource "aws_resourcegroups_group" "this" {
  name        = var.name
  description = var.description
  tags        = var.tags

  # What lets a launch target the group.
  configuration {
    type = "AWS::EC2::CapacityReservationPool"
  }

  # What keeps everything but reservations out of it.
  configuration {
    type = "AWS::ResourceGroups::Generic"

    parameters {
      name   = "allowed-resource-types"
      values = ["AWS::EC2::CapacityReservation"]
    }

    dynamic "parameters" {
      for_each = var.deletion_protection ? ["UNLESS_EMPTY"] : []

      content {
        name   = "deletion-protection"
        values = [parameters.value]
      }
    }
  }
}

resource "aws_resourcegroups_resource" "this" {
  for_each = aws_ec2_capacity_reservation.this

  group_arn    = aws_resourcegroups_group.this.arn
  resource_arn = each.value.arn
}

resource "aws_ram_resource_share" "this" {
  count = length(var.share_with) > 0 ? 1 : 0

  name                      = var.name
  allow_external_principals = var.share_outside_organization
  tags                      = var.tags

  lifecycle {
    precondition {
      condition     = alltrue([for r in values(var.reservations) : r.tenancy == "default"])
      error_message = "share_with: only reservations of default tenancy can be shared."
    }
  }
}

resource "aws_ram_principal_association" "this" {
  for_each = toset(var.share_with)

  resource_share_arn = aws_ram_resource_share.this[0].arn
  principal          = each.value
}

resource "aws_ram_resource_association" "this" {
  for_each = length(var.share_with) > 0 ? aws_ec2_capacity_reservation.this : {}

  resource_share_arn = aws_ram_resource_share.this[0].arn
  resource_arn       = each.value.arn
}
