"""Custom resources: their definitions, and how a definition changes and checks an object."""
