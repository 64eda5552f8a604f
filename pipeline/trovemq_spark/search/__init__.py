"""The search for messages: its conditions, and the places that are searched."""
