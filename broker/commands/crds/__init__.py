"""The definitions of the kinds that the broker reads."""
