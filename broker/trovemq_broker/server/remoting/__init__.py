"""RocketMQ's remoting protocol at the broker: requests of 4.x clients, and of the remoting clients of 5.x."""
