"""What the ends of a type of stream share on all transports."""
