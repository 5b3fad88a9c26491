"""Games of trained players against each other: matches, tables of results, ratings."""
