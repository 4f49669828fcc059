"""The agent of a node: it starts, supervises and stops workers. Only `agent_service` knows the network; the other modules take
orders and return reports as values of `fairlead.runtime.protocol.orders`."""
