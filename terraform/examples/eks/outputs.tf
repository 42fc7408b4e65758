output "kubernetes_yaml" {
  description = "The classes and flavors of all teams, for kubectl apply."
  value       = join("---\n", flatten([for team in values(module.reservations) : [team.node_class_yaml, team.resource_flavors_yaml]]))
}

output "helm_values_yaml" {
  description = "All values that the chart requires, for helm --values."
  value = yamlencode({
    image             = var.image
    clusterName       = var.cluster_name
    region            = var.region
    interruptionQueue = aws_sqs_queue.notices.name
    networkPolicy     = { apiServerCIDRs = sort(distinct(values(data.aws_subnet.control_plane)[*].cidr_block)) }
    serviceAccount    = { name = "capacity-broker", annotations = module.broker_iam.service_account_annotations }
  })
}
