output "reservation_ids" {
  description = "Id of each reservation, by its key in var.reservations."
  value       = { for key, reservation in aws_ec2_capacity_reservation.this : key => reservation.id }
}

output "reservation_arns" {
  description = "ARN of each reservation, by its key in var.reservations."
  value       = { for key, reservation in aws_ec2_capacity_reservation.this : key => reservation.arn }
}

output "group_name" {
  description = "Name of the resource group."
  value       = aws_resourcegroups_group.this.name
}

output "group_arn" {
  description = "ARN of the resource group, for capacityReservationResourceGroupArn."
  value       = aws_resourcegroups_group.this.arn
}

output "flavors" {
  description = "Name of each reservation's ResourceFlavor, by its key in var.reservations."
  value       = local.flavors
}

output "node_class_yaml" {
  description = "The EC2NodeClass whose nodes launch into the group, or without node_class.role what to merge into it."
  value       = replace(yamlencode(local.node_class), local.quoted_key, "$1$2:")
}

output "resource_flavors_yaml" {
  description = "Kueue's ResourceFlavors, one a flavor, for kubectl apply."
  value = join("---\n", [
    for flavor, labels in local.flavor_labels : replace(yamlencode({
      apiVersion = var.resource_flavors.api_version
      kind       = "ResourceFlavor"
      metadata   = { name = flavor }
      spec       = { nodeLabels = labels }
    }), local.quoted_key, "$1$2:")
  ])
}

locals {
  # yamlencode quotes every key.
  quoted_key = "/((?:^|\n)[\\s-]*)\"(\\w+)\":/"

  node_class = {
    apiVersion = var.node_class.api_version
    kind       = "EC2NodeClass"
    metadata   = { name = var.node_class.name }
    spec = merge(
      {
        capacityReservationSpec = {
          capacityReservationTarget = { capacityReservationResourceGroupArn = aws_resourcegroups_group.this.arn }
        }
      },
      var.node_class.role == null ? null : {
        role                       = var.node_class.role
        amiSelectorTerms           = [{ alias = var.node_class.ami_alias }]
        subnetSelectorTerms        = [{ tags = var.node_class.discovery }]
        securityGroupSelectorTerms = [{ tags = var.node_class.discovery }]
      },
    )
  }

  # flavor -> its reservations
  by_flavor = { for key, flavor in local.flavors : flavor => var.reservations[key]... }
  flavor_labels = {
    for flavor, all in local.by_flavor : flavor => merge(
      { "node.kubernetes.io/instance-type" = all[0].instance_type },
      length(distinct(all[*].availability_zone)) == 1 ? { "topology.kubernetes.io/zone" = all[0].availability_zone } : {},
      var.resource_flavors.node_labels,
    )
  }
}
