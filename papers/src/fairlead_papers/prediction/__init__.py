"""How good predictions from graphs are: errors on what was left out, and on pairs that no fit has seen."""
