"""RocketMQ 5's own protocol, written from its description and compiled under our package name."""
