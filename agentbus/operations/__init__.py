"""The rules of the bus, written once: generators that yield statements and receive rows. No I/O."""
