"""Registration at nameservers, the routes of the other brokers, and the broker's description of itself."""
