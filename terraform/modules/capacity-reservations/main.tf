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
  tags                    = merge({ ManagedBy = "terraform" }, var.tags, { Name = each.key }, each.value.tags)
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
