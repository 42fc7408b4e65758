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
  value       = sort(distinct(flatten(values(local.actions))))
}
