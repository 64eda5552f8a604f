"""Filters of subscriptions: tag expressions and SQL-92 conditions."""
