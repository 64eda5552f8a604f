"""The services of TroveMQ's own protocol, one module each, and the mapping of their messages."""
