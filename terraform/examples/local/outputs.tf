output "reservation_ids" {
  value = module.reservations.reservation_ids
}

output "reservation_arns" {
  value = module.reservations.reservation_arns
}

output "group_name" {
  value = module.reservations.group_name
}

output "group_arn" {
  value = module.reservations.group_arn
}

output "node_class_yaml" {
  value = module.reservations.node_class_yaml
}

output "flavors" {
  value = module.reservations.flavors
}

output "resource_flavors_yaml" {
  value = module.reservations.resource_flavors_yaml
}

output "broker_policy_json" {
  value = module.broker_iam.policy_json
}

output "broker_manage_policy_json" {
  value = module.broker_iam.manage_policy_json
}

output "broker_actions" {
  value = module.broker_iam.actions
}

output "service_account_annotations" {
  value = module.broker_iam.service_account_annotations
}
