"""The processes of a real cluster: control plane and agents."""
