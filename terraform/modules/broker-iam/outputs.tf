output "role_arn" {
  description = "ARN of the broker's role."
  value       = aws_iam_role.this.arn
}

output "policy_arn" {
  description = "ARN of the broker's policy."
  value       = aws_iam_policy.this.arn
}

output "policy_json" {
  description = "The broker's policy, for those who attach it otherwise."
  value       = local.policies.always
}

output "manage_policy_json" {
  description = "What manage_reservations adds, for those who attach it otherwise; null without it."
  value       = var.manage_reservations ? local.policies.manage : null
}

output "actions" {
  description = "Every permission that the role has."
  value = sort(distinct(flatten([
    for statement in concat(local.always, var.manage_reservations ? local.manage : []) : statement.Action
  ])))
}

output "service_account_annotations" {
  description = "The chart's serviceAccount.annotations: for IRSA the role, for Pod Identity none."
  value       = { for name in ["eks.amazonaws.com/role-arn"] : name => aws_iam_role.this.arn if var.oidc_provider_arn != null }
}
