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

output "node_class_yaml" {
  description = "What to merge into the EC2NodeClass so that its nodes launch into the group."
  value       = <<-EOT
    apiVersion: ${var.node_class.api_version}
    kind: EC2NodeClass
    metadata:
      name: ${var.node_class.name}
    spec:
      capacityReservationSpec:
        capacityReservationTarget:
          capacityReservationResourceGroupArn: ${aws_resourcegroups_group.this.arn}
  EOT
}
