"""Facts of a node's network: netdevs, rails, neighbours, routes and sockets."""
