"""Registration at nameservers, and the broker's description of itself."""
