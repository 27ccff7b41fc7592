"""What looks after the bus: recovery. A service gathers evidence and calls operations; the bus hands it out."""
