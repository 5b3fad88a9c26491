"""The director's worker: facts that the launcher needs without loading it."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Headline, Kind, Shown, Travel

ACTIVITIES = (
    Activity("direct", "other", "share of time proposing games and counting their outcomes", "below 0.5"),
    Activity("wait", "wait", "share of time without requests", "above 0.5", waits_for="actors"),
    Activity(
        "wait_learner",
        "wait",
        "share of time waiting for a learner to freeze, reset or copy",
        "near 0",
        waits_for="a learner",
    ),
)

METRICS = (
    Metric("games_per_s", "games that ended", "1/s", "actor/episodes"),
    Metric("assigned", "games assigned so far", "count", "finished + discarded + open", "sum"),
    Metric("finished", "games finished so far", "count", "rises", "sum"),
    Metric(
        "discarded", "games discarded so far: their actor was replaced, or their outcome was lost", "count", "0", "sum"
    ),
    Metric("late", "outcomes of games that had been discarded", "count", "0", "sum"),
    Metric("open", "games that are played now, or wait at an actor", "count", "near the number of environments"),
    Metric("players", "players that the payoff table has: latest and frozen ones", "count", "rises slowly"),
    Metric("elo_best", "highest rating of all players, in Elo points; the mean is 0", "Elo", "the latest player's"),
    Metric("elo_latest", "highest rating of a player that learns", "Elo", "rises with the players frozen"),
    Metric("elo_latest_ci95", "half width of its 95% interval", "Elo", "below 50"),
    Metric(
        "win_rate_mean", "mean win rate of that player over the players it met; a draw counts half", "0-1", "above 0.5"
    ),
    Metric("win_rate_least", "its lowest win rate against one of them", "0-1", "rises, near 0.5"),
    Metric("copies", "members of a population that copied another's state", "count", "rises slowly", "sum"),
    Metric("score_best", "score of the best member of a population: a mean return, or points", "-", "rises"),
    Metric("score_worst", "score of the worst member of a population", "-", "rises, not far below the best"),
)

KIND = Kind(
    name="director",
    plural="directors",
    build="jsrl.workers.director.worker:build_director",
    loads_jax=False,
    receives=("games", "done", "scores", "saving"),
    sends=("command", "stop"),
    shown=Shown(ACTIVITIES, METRICS, Headline("games_per_s", "games/s")),
    travel=Travel(needs_folder="it keeps its players and results there"),
)
