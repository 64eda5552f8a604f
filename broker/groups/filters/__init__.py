"""Which messages a subscription takes: tag expressions and SQL-92 conditions."""
