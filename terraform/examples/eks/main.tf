terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.30"
    }
  }
}

provider "aws" {
  region = var.region

  # The broker may mark reservations for Karpenter's selector terms: its marks are not Terraform's to remove.
  ignore_tags {
    key_prefixes = ["capacity-broker.io/advised/"]
  }
}

data "aws_caller_identity" "this" {}

data "aws_partition" "this" {}

data "aws_eks_cluster" "this" {
  name = var.cluster_name
}

# The control plane calls the broker's webhook from these.
data "aws_subnet" "control_plane" {
  for_each = toset(data.aws_eks_cluster.this.vpc_config[0].subnet_ids)

  id = each.key
}

# Reservations that Terraform owns, for two teams that share a cohort. Each belongs to the CapacityReservation that it
# names, and the broker counts it there.
module "reservations" {
  source   = "../../modules/capacity-reservations"
  for_each = var.teams

  name                 = "${var.cluster_name}-${each.key}"
  capacity_reservation = "${each.key}/${each.value.capacity_reservation}"
  reservations         = each.value.reservations
  tags                 = { cluster = var.cluster_name, team = each.key }
  node_class           = { name = each.key, role = var.node_role_name, discovery = { "karpenter.sh/discovery" = var.cluster_name } }
  resource_flavors     = { api_version = var.kueue_api_version }
}

module "broker_iam" {
  source = "../../modules/broker-iam"

  cluster_name            = var.cluster_name
  region                  = var.region
  account_id              = data.aws_caller_identity.this.account_id
  partition               = data.aws_partition.this.partition
  node_role_arns          = ["arn:${data.aws_partition.this.partition}:iam::${data.aws_caller_identity.this.account_id}:role/${var.node_role_name}"]
  ssm_parameter_arns      = var.ssm_parameter_arns
  reservation_group_names = var.manage_reservations ? ["*"] : concat(values(module.reservations)[*].group_name, var.reservation_group_names)
  manage_reservations     = var.manage_reservations
  oidc_provider_arn       = var.oidc_provider_arn
  interruption_queue_arn  = aws_sqs_queue.notices.arn
}
