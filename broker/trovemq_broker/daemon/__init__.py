"""The process: settings, start and stop. `app` runs it; `broker_services` creates and connects all parts."""
