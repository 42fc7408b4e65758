variable "cluster_name" {
  description = "Name of the EKS cluster."
  type        = string
}

variable "region" {
  description = "The cluster's Region."
  type        = string
}

variable "image" {
  description = "Where the broker's image was pushed, and its digest as `docker push` prints it."
  type = object({
    repository = string
    digest     = string
  })

  validation {
    condition     = can(regex("^sha256:[0-9a-f]{64}$", var.image.digest))
    error_message = "image.digest is sha256: and 64 hexadecimal digits."
  }
}

variable "node_role_name" {
  description = "Name of the role that nodes get."
  type        = string
}

variable "teams" {
  description = "By namespace: the team's CapacityReservation, and the reservations that are bought for it."
  type = map(object({
    capacity_reservation = string
    reservations = map(object({
      instance_type     = string
      availability_zone = string
      count             = number
      end_date          = optional(string)
    }))
  }))
  default = {}
}

variable "ssm_parameter_arns" {
  description = "SSM parameters of yours that EC2NodeClasses name in ssmParameter. Those under /aws/service/ are always readable."
  type        = list(string)
  default     = []
}

variable "reservation_group_names" {
  description = "Resource groups of reservations that exist already, which launches may target."
  type        = list(string)
  default     = []
}

variable "manage_reservations" {
  description = "Let the broker make reservations as well, for CapacityReservations whose policy is Manage."
  type        = bool
  default     = false
}

variable "oidc_provider_arn" {
  description = "For IRSA: the cluster's IAM OIDC provider. null: EKS Pod Identity."
  type        = string
  default     = null
}

variable "kueue_api_version" {
  description = "The version of Kueue's API that the cluster serves."
  type        = string
  default     = "kueue.x-k8s.io/v1beta1"
}
