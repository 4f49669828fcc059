"""Journals in databases: they survive their writer, and a restart need not read them from the beginning."""
