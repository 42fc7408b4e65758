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

provider "aws" {
  region                      = var.region
  access_key                  = "local"
  secret_key                  = "local"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true

  endpoints {
    ec2            = var.endpoint
    iam            = var.endpoint
    resourcegroups = var.endpoint
    sts            = var.endpoint
  }
}

module "reservations" {
  source = "../../modules/capacity-reservations"

  name = "training"
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
  node_class = { name = "gpu" }
}

module "broker_iam" {
  source = "../../modules/broker-iam"

  cluster_name            = "demo"
  region                  = var.region
  account_id              = "123456789012"
  node_role_arns          = ["arn:aws:iam::123456789012:role/nodes"]
  reservation_group_names = [module.reservations.group_name]
  create_association      = false
}
