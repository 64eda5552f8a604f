"""The process: settings, start and stop. `app` is the one place where everything is put together."""
