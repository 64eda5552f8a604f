"""Messages of an archive, a log or a live topic sent again."""
