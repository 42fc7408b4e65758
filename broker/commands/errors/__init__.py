"""Refusals and problems, counted."""
