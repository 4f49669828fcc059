"""Linear programs of allocation policies, over classes of identical jobs."""
