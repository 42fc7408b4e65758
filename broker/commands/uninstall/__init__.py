"""What the broker leaves behind, and its removal."""
