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
    - flavor: name of the Kueue ResourceFlavor that it is hardware of; by default its type and zone,
      "p5-48xlarge-us-east-1a". Reservations of one flavor have one type; in one zone the flavor pins the zone as well.
    - capacity_reservation: instead of var.capacity_reservation.
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
    flavor            = optional(string)

    capacity_reservation = optional(string)
  }))

  validation {
    condition     = alltrue([for r in values(var.reservations) : contains(["open", "targeted"], r.match_criteria)])
    error_message = "match_criteria is \"open\" or \"targeted\"."
  }

  validation {
    condition     = alltrue([for r in values(var.reservations) : r.flavor == null || can(regex("^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", coalesce(r.flavor, "-")))])
    error_message = "flavor is a name in lower case: letters, digits, hyphens and dots."
  }

  validation {
    condition     = alltrue([for f in distinct(compact(values(var.reservations)[*].flavor)) : length(distinct([for r in values(var.reservations) : r.instance_type if r.flavor == f])) == 1])
    error_message = "Reservations of one flavor have one instance_type."
  }

  validation {
    condition     = alltrue([for r in values(var.reservations) : r.capacity_reservation == null || can(regex("^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", coalesce(r.capacity_reservation, "-")))])
    error_message = "capacity_reservation is \"namespace/name\" or the name of a ClusterCapacityReservation, in lower case."
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

variable "capacity_reservation" {
  description = "The CapacityReservation in the cluster that these belong to: \"namespace/name\", or the name of a ClusterCapacityReservation. The broker counts them for it, and changes none of them. null: for none."
  type        = string
  default     = null

  validation {
    condition     = var.capacity_reservation == null || can(regex("^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", coalesce(var.capacity_reservation, "-")))
    error_message = "capacity_reservation is \"namespace/name\" or the name of a ClusterCapacityReservation, in lower case."
  }
}

variable "share_with" {
  description = "Share the reservations, by Resource Access Manager: accounts (12 digits), or ARNs of an organization or its units. Only what has default tenancy can be shared."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for p in var.share_with : can(regex("^([0-9]{12}|arn:[^:]+:organizations::[0-9]{12}:(organization|ou)/.+)$", p))])
    error_message = "share_with takes account ids of 12 digits and ARNs of an organization or an organizational unit."
  }
}

variable "share_outside_organization" {
  description = "Let share_with name accounts outside the organization; they get an invitation, and the share works once it is accepted."
  type        = bool
  default     = false
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
  description = <<-EOT
    The EC2NodeClass that the output node_class_yaml is for. With role it is whole, and finds subnets and security
    groups by discovery; without, it is what to merge into a class that is there.
  EOT
  type = object({
    name        = optional(string, "default")
    api_version = optional(string, "karpenter.k8s.aws/v1")
    role        = optional(string)
    ami_alias   = optional(string, "al2023@latest")
    discovery   = optional(map(string), {})
  })
  default = {}

  validation {
    condition     = var.node_class.role == null || length(var.node_class.discovery) > 0
    error_message = "node_class.discovery is the tag of the subnets and security groups, such as { \"karpenter.sh/discovery\" = \"prod\" }."
  }
}

variable "resource_flavors" {
  description = "The ResourceFlavors of the output resource_flavors_yaml: the version of Kueue's API, and labels that nodes carry beside type and zone."
  type = object({
    api_version = optional(string, "kueue.x-k8s.io/v1beta1")
    node_labels = optional(map(string), {})
  })
  default = {}
}
