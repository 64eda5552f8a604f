"""Changes of topics and groups: checked, written, durable before they are answered."""
