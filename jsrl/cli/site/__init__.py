"""The site that `jsrl docs` builds: its settings, and the pages as a link to docs/."""
