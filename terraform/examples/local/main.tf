terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.30"
    }
  }
}

variable "endpoint" {
  description = "Where local AWS listens."
  type        = string
  default     = "http://127.0.0.1:5000"
}

variable "region" {
  description = "The Region to play in."
  type        = string
  default     = "us-east-1"
}

variable "counts" {
  description = "Instances in each reservation."
  type        = object({ a = number, b = number })
  default     = { a = 4, b = 2 }
}

variable "end_date" {
  description = "When the reservation in zone b ends. RFC 3339; null for never."
  type        = string
  default     = null
}

variable "share_with" {
  description = "Accounts that the reservations are shared with."
  type        = list(string)
  default     = []
}

variable "manage_reservations" {
  description = "Let the broker make reservations as well."
  type        = bool
  default     = false
}

variable "oidc_provider_arn" {
  description = "For a role by IRSA, as a cluster's own tokens assume it; null for EKS Pod Identity."
  type        = string
  default     = null
}

provider "aws" {
  region                      = var.region
  access_key                  = "local"
  secret_key                  = "local"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true

  # The broker may mark reservations for Karpenter's selector terms: its marks are not Terraform's to remove.
  ignore_tags {
    key_prefixes = ["capacity-broker.io/advised/"]
  }

  endpoints {
    ec2            = var.endpoint
    iam            = var.endpoint
    ram            = var.endpoint
    resourcegroups = var.endpoint
    sts            = var.endpoint
  }
}

module "reservations" {
  source = "../../modules/capacity-reservations"

  name                 = "training"
  capacity_reservation = "ml/training"
  share_with           = var.share_with
  reservations = {
    h100-a = { instance_type = "p5.48xlarge", availability_zone = "${var.region}a", count = var.counts.a }
    h100-b = {
      instance_type     = "p5.48xlarge"
      availability_zone = "${var.region}b"
      count             = var.counts.b
      match_criteria    = "open"
      end_date          = var.end_date
      tags              = { team = "research" }
    }
  }
  tags       = { project = "capacity-broker" }
  node_class = { name = "gpu", role = "nodes", discovery = { "karpenter.sh/discovery" = "demo" } }
}

module "broker_iam" {
  source = "../../modules/broker-iam"

  cluster_name            = "demo"
  region                  = var.region
  account_id              = "123456789012"
  node_role_arns          = ["arn:aws:iam::123456789012:role/nodes"]
  reservation_group_names = [module.reservations.group_name]
  manage_reservations     = var.manage_reservations
  oidc_provider_arn       = var.oidc_provider_arn
  create_association      = false
}
