"""Consumption.

- `inbox`         received messages for the program; the order of message groups
- `group_stream`  the Consume stream of one broker: credit, batches, settlements
- `streamed`      messages of that stream, read from their records on demand
- `grouped`       a subscription of a consumer group over all brokers of a topic
- `broadcast`     a subscription that receives everything, by queue offset
- `puller`        messages of a queue by offset
"""
