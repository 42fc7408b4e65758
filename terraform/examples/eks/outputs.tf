output "kubernetes_yaml" {
  description = "The classes and flavors of all teams, for kubectl apply."
  value       = join("---\n", flatten([for team in values(module.reservations) : [team.node_class_yaml, team.resource_flavors_yaml]]))
}

output "helm_values_yaml" {
  description = "What the chart has to know of this, for helm --values."
  value = yamlencode({
    clusterName       = var.cluster_name
    region            = var.region
    interruptionQueue = aws_sqs_queue.notices.name
    serviceAccount    = { name = "capacity-broker", annotations = module.broker_iam.service_account_annotations }
  })
}
