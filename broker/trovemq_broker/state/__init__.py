"""The state that the broker recovers from its log: deliveries, timers and transactions as one thing.

- `consumer_state`   combines the parts, takes snapshots of them and replays the log after a start
- `rocketmq_import`  reads the deliveries of a store that RocketMQ wrote
- `held_log`         the queues that hold segments of the log
"""
