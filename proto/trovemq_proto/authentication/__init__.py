"""Authentication of our clients, for both sides: `scram` once per connection, then `calls` for each call."""
