# EC2's and AWS Health's notices, in a queue that only the broker reads.

locals {
  notices = {
    "aws.ec2" = [
      { prefix = "Capacity Block " },
      { prefix = "EC2 Capacity Reservation " },
      { prefix = "EC2 Interruptible Capacity Reservation " },
      { prefix = "EC2 Instance Rebalance Recommendation" },
      { prefix = "EC2 Instance State-change Notification" },
      { prefix = "EC2 Spot Instance Interruption Warning" },
    ]
    "aws.health" = [{ prefix = "AWS Health Event" }]
  }
}

resource "aws_sqs_queue" "notices" {
  name                      = "${var.cluster_name}-capacity-broker"
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "notices" {
  queue_url = aws_sqs_queue.notices.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "FromEventBridge"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.notices.arn
      Condition = { ArnEquals = { "aws:SourceArn" = values(aws_cloudwatch_event_rule.notices)[*].arn } }
    }]
  })
}

resource "aws_cloudwatch_event_rule" "notices" {
  for_each = local.notices

  name          = "${var.cluster_name}-capacity-broker-${trimprefix(each.key, "aws.")}"
  event_pattern = jsonencode({ source = [each.key], "detail-type" = each.value })
}

resource "aws_cloudwatch_event_target" "notices" {
  for_each = aws_cloudwatch_event_rule.notices

  rule = each.value.name
  arn  = aws_sqs_queue.notices.arn
}
