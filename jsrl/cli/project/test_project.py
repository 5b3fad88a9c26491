"""The environment and the algorithm keep their contracts, and a short run learns something: `python -m pytest`."""

from configs.PROJECT import config
from jsrl import check_agent, check_env, make_env, run
from jsrl.extend import build_agent


def test_the_environment_keeps_its_contract():
    """Shapes, dtypes, seeds, the ends of episodes."""
    check_env(config().env)


def test_the_algorithm_keeps_its_contract():
    """Shapes, masks, purity, one device against two."""
    spec = make_env(config().env, 2, seed=0).spec
    check_agent(build_agent(config().agent, spec), spec)


def test_a_short_run_reaches_the_end_of_the_corridor(tmp_path):
    """In one process; `jsrl run` uses several."""
    result = run(config(), placement="serial", total_env_steps=40_000, runs_dir=str(tmp_path), display="quiet")
    assert result.final["return_mean"] > 0.0  # a random walk makes about -7
