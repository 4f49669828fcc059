"""Journals that survive: databases."""
