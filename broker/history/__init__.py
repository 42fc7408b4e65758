"""The history: one record of every attempt and every reported change, kept in a database."""
