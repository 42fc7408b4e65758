"""Managers of fields: field sets, comparison, merging, and server-side apply on top of them."""
