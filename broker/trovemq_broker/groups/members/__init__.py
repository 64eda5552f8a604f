"""Members of groups that wait: receives without messages, and the new messages that wake them."""
