"""The reservations that the account sees, and what idle ones cost."""
