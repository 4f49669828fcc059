"""From fractions of time to rounds: what makes of an allocation the selection of each round."""
