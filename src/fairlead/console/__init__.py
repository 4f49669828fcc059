"""The live console: pages for browsers, their sessions, and the stream of changes that keeps them up to date."""
