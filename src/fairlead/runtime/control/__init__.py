"""The control plane: the engine's loop on wall time, agents that carry out plans, and the HTTP API for users."""
