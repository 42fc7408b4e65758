"""What the broker would do with the objects of files."""
