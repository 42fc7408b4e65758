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
  value       = local.policy
}

output "actions" {
  description = "Every permission that the policy allows."
  value       = sort(distinct(flatten([for statement in local.statements : statement.Action])))
}

output "service_account_annotations" {
  description = "The chart's serviceAccount.annotations: for IRSA the role, for Pod Identity none."
  value       = { for name in ["eks.amazonaws.com/role-arn"] : name => aws_iam_role.this.arn if var.oidc_provider_arn != null }
}
