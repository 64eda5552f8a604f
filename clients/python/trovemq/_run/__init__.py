"""The run of a client: workers that call handlers, and the end of a client."""
