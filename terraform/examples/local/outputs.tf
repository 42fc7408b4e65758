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

output "broker_policy_json" {
  value = module.broker_iam.policy_json
}

output "broker_actions" {
  value = module.broker_iam.actions
}
