"""What is done with runs: reports, tuning and search, export, trained policies, a model of their speed, chaos."""
