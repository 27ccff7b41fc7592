"""What contestants have to do. Who does it is in ``contestants``."""
