"""How two ends of a stream meet: addresses, hellos, keys, sockets."""
