"""Protocol messages of RocketMQ 5: `.proto` files and the code generated from them (`make proto`)."""
