"""The contestants of the queue workloads: somewhere to send to, receive from and acknowledge in."""
