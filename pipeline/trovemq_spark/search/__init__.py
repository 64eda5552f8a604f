"""Finding messages: what is asked, and the places where it is looked for."""
