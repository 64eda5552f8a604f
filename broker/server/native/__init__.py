"""The services of TroveMQ's own protocol, a module each, and the mapping of their messages."""
