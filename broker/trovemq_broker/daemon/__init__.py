"""The process: settings, start and stop. `app` runs it; `broker_services` makes the services of a broker on
its core, `background` the tasks beside them.
"""
