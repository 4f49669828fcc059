"""Horus and the packers it is compared with: jobs share accelerators, by what they are predicted to do to each other."""
