"""The folder of a run: what is kept there, who holds it, and its control socket."""
