"""Results of calls besides messages: frozen values that hold no connection."""
