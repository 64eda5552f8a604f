"""Connections to brokers and nameservers, routes, and the Append stream."""
