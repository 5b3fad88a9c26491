"""Workers: setup / step / close around an agent, an environment and streams."""
