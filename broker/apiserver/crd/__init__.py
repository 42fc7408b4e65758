"""Custom resources: their definitions, and what a definition makes of an object."""
