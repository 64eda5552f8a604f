"""Finding messages: the conditions, and the places that are searched."""
