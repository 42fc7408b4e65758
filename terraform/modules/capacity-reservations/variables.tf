variable "name" {
  description = "Name of the resource group that the EC2NodeClass targets. It cannot be changed later, and cannot begin with \"aws\"."
  type        = string

  validation {
    condition     = can(regex("^[a-zA-Z0-9_.-]{1,128}$", var.name)) && !startswith(lower(var.name), "aws")
    error_message = "name takes 1 to 128 letters, digits, dots, hyphens and underscores, and cannot begin with \"aws\"."
  }
}

variable "description" {
  description = "Description of the resource group."
  type        = string
  default     = "On-Demand Capacity Reservations for capacity-broker"
}

variable "reservations" {
  description = <<-EOT
    The Capacity Reservations, by a name of your own that stays the same when the numbers change.

    - platform: the PlatformDetails of the AMI that will run in it. All Linux without a licence charge is "Linux/UNIX".
    - match_criteria: "targeted" lets only launches in that name the reservation or its group; "open" lets every
      matching instance of the account in, also such as nobody meant for it.
    - end_date: RFC 3339, in UTC and without fractions ("2027-01-31T23:00:00Z"); without it the reservation stays
      until it is destroyed.
  EOT
  type = map(object({
    instance_type     = string
    availability_zone = string
    count             = number
    platform          = optional(string, "Linux/UNIX")
    match_criteria    = optional(string, "targeted")
    tenancy           = optional(string, "default")
    ebs_optimized     = optional(bool, false)
    end_date          = optional(string)
    tags              = optional(map(string), {})
  }))

  validation {
    condition     = alltrue([for r in values(var.reservations) : contains(["open", "targeted"], r.match_criteria)])
    error_message = "match_criteria is \"open\" or \"targeted\"."
  }

  validation {
    condition     = alltrue([for r in values(var.reservations) : contains(["default", "dedicated"], r.tenancy)])
    error_message = "tenancy is \"default\" or \"dedicated\"."
  }

  validation {
    condition     = alltrue([for r in values(var.reservations) : r.count >= 1 && r.count <= 1000 && floor(r.count) == r.count])
    error_message = "count is a whole number from 1 to 1000: EC2 takes no other. To give a reservation back, remove its entry."
  }

  validation {
    condition     = alltrue([for r in values(var.reservations) : r.end_date == null || can(regex("^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z$", r.end_date))])
    error_message = "end_date is RFC 3339 in UTC without fractions, such as \"2027-01-31T23:00:00Z\"."
  }
}

variable "tags" {
  description = "Tags of every reservation and of the group."
  type        = map(string)
  default     = {}
}

variable "deletion_protection" {
  description = "Refuse to delete the group while it has reservations in it."
  type        = bool
  default     = false
}

variable "node_class" {
  description = "The EC2NodeClass that the output node_class_yaml is for."
  type = object({
    name        = optional(string, "default")
    api_version = optional(string, "karpenter.k8s.aws/v1")
  })
  default = {}
}
