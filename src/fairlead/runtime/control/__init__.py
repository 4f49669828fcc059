"""The control plane: the engine's loop on wall time, agents that carry plans out, people that ask and submit."""
