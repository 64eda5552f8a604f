"""Registration at nameservers, and the view of the cluster that they answer."""
