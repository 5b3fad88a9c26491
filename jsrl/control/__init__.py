"""Starting, supervising, continuing and ending a run; `supervision` and `ending` decide, without clocks or files."""
