"""RocketMQ's transactional messages: half messages, their ends, their checks."""
