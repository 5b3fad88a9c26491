"""Where processes come from, and who watches them."""
