"""AWS by boto3: reservations, groups, launch templates, fleets, images, types, one table of errors."""

from providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
