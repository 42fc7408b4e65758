variable "cluster_name" {
  description = "Name of the EKS cluster. It is the value of the tag on everything the broker makes, and part of the names of its groups and instance profiles."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", var.cluster_name))
    error_message = "cluster_name is the name of an EKS cluster: letters, digits, - and _, 100 at most."
  }
}

variable "node_role_arns" {
  description = "Roles that the broker may give to nodes: those that the EC2NodeClasses name."
  type        = list(string)

  validation {
    condition     = length(var.node_role_arns) > 0 && alltrue([for arn in var.node_role_arns : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/.+$", arn))])
    error_message = "node_role_arns is a list of at least one role's ARN, such as \"arn:aws:iam::123456789012:role/nodes\"."
  }
}

variable "region" {
  description = "The Region that the broker works in."
  type        = string
}

variable "account_id" {
  description = "The account that the broker works in. Reservations that other accounts share with it are allowed as well."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account_id))
    error_message = "account_id has 12 digits."
  }
}

variable "partition" {
  description = "The partition, such as aws-eusc. null: aws, aws-cn or aws-us-gov, by the region."
  type        = string
  default     = null
}

variable "manage_reservations" {
  description = "Let the broker create, resize and cancel reservations and their groups, for CapacityReservations whose policy is Manage. It costs money; what it did not make stays out of its reach."
  type        = bool
  default     = false
}

variable "reservation_group_names" {
  description = "Resource groups that launches may target. \"*\" is every group of the account."
  type        = list(string)
  default     = ["*"]
}

variable "ssm_parameter_arns" {
  description = "Parameters of yours that EC2NodeClasses name in ssmParameter, beside those that AWS publishes under /aws/service/. A parameter may hold a secret, so none is readable that is not listed."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.ssm_parameter_arns : can(regex("^arn:[^:]+:ssm:[^:]+:[0-9]{12}:parameter/[^*]+", arn))])
    error_message = "ssm_parameter_arns is a list of parameters' ARNs, such as \"arn:aws:ssm:us-east-1:123456789012:parameter/images/*\"; one for all parameters is refused."
  }
}

variable "interruption_queue_arn" {
  description = "The SQS queue of EC2's notices that the broker reads. null: it reads none."
  type        = string
  default     = null

  validation {
    condition     = var.interruption_queue_arn == null || can(regex("^arn:[^:]+:sqs:[^:]+:[0-9]{12}:.+$", coalesce(var.interruption_queue_arn, "-")))
    error_message = "interruption_queue_arn is the ARN of an SQS queue, such as \"arn:aws:sqs:us-east-1:123456789012:capacity-broker\"."
  }
}

variable "ownership_tag" {
  description = "Key of the tag that the broker puts on what it makes. The policy lets it change nothing that does not carry it."
  type        = string
  default     = "capacity-broker.io/cluster"
}

variable "name" {
  description = "Name of the role and of its policy."
  type        = string
  default     = "capacity-broker"
}

variable "namespace" {
  description = "Namespace of the broker's service account."
  type        = string
  default     = "capacity-broker"
}

variable "service_account" {
  description = "The broker's service account."
  type        = string
  default     = "capacity-broker"
}

variable "oidc_provider_arn" {
  description = "For IRSA: the cluster's IAM OIDC provider. null: the role is for EKS Pod Identity."
  type        = string
  default     = null

  validation {
    condition     = var.oidc_provider_arn == null || can(regex("^arn:[^:]+:iam::[0-9]{12}:oidc-provider/.+$", coalesce(var.oidc_provider_arn, "-")))
    error_message = "oidc_provider_arn is the ARN of an IAM OIDC provider, such as \"arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-east-1.amazonaws.com/id/EXAMPLE\"."
  }
}

variable "create_association" {
  description = "Without oidc_provider_arn: bind the role to the service account with EKS Pod Identity. Needs the cluster's eks-pod-identity-agent add-on."
  type        = bool
  default     = true
}

variable "permissions_boundary" {
  description = "ARN of the role's permissions boundary."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of the role and the policy."
  type        = map(string)
  default     = {}
}
