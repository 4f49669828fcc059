"""The round mechanism: turns an allocation (fractions of time) into the selection of each round."""
