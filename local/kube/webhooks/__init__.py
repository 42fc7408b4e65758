"""Validating webhooks: matching, calling, and the effect of their responses."""
