"""What an agent does on its node: start workers, watch them, stop them. It knows no network; orders come in and news go out as
the values of `fairlead.runtime.protocol.orders`."""
