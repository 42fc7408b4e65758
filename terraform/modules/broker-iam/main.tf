locals {
  issuer = var.oidc_provider_arn == null ? "" : split(":oidc-provider/", var.oidc_provider_arn)[1]

  # Only the broker's service account in this cluster may assume the role, by Pod Identity or by the cluster's tokens.
  trust = var.oidc_provider_arn == null ? jsonencode({
    Sid       = "EksPodIdentity"
    Effect    = "Allow"
    Action    = ["sts:AssumeRole", "sts:TagSession"]
    Principal = { Service = "pods.eks.amazonaws.com" }
    # Session tags that Pod Identity adds to each request (EKS User Guide, "Enable or disable session tags").
    Condition = { StringEquals = {
      "aws:RequestTag/eks-cluster-arn"            = "arn:${local.partition}:eks:${var.region}:${var.account_id}:cluster/${var.cluster_name}"
      "aws:RequestTag/kubernetes-namespace"       = var.namespace
      "aws:RequestTag/kubernetes-service-account" = var.service_account
    } }
    }) : jsonencode({
    Sid       = "ServiceAccountToken"
    Effect    = "Allow"
    Action    = ["sts:AssumeRoleWithWebIdentity"]
    Principal = { Federated = var.oidc_provider_arn }
    Condition = { StringEquals = {
      "${local.issuer}:aud" = "sts.amazonaws.com"
      "${local.issuer}:sub" = "system:serviceaccount:${var.namespace}:${var.service_account}"
    } }
  })
}

resource "aws_iam_role" "this" {
  name                 = var.name
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [jsondecode(local.trust)]
  })
}

resource "aws_iam_policy" "this" {
  name        = var.name
  description = "What capacity-broker does in cluster ${var.cluster_name}"
  policy      = local.policies.always
  tags        = var.tags
}

resource "aws_iam_role_policy_attachment" "this" {
  role       = aws_iam_role.this.name
  policy_arn = aws_iam_policy.this.arn
}

resource "aws_iam_policy" "manage" {
  count = var.manage_reservations ? 1 : 0

  name        = "${var.name}-manage"
  description = "The reservations that capacity-broker makes for cluster ${var.cluster_name}"
  policy      = local.policies.manage
  tags        = var.tags
}

resource "aws_iam_role_policy_attachment" "manage" {
  count = var.manage_reservations ? 1 : 0

  role       = aws_iam_role.this.name
  policy_arn = aws_iam_policy.manage[0].arn
}

resource "aws_eks_pod_identity_association" "this" {
  count = var.create_association && var.oidc_provider_arn == null ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.this.arn
  tags            = var.tags
}
