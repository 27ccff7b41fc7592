"""The contestants of the queue benchmark: queues to send to, receive from and acknowledge in."""
