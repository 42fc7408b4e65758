"""Validating webhooks: who wants to be asked about a write, how, and what follows from the answer."""
