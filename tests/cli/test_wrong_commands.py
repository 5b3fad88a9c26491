"""Wrong commands: each is refused before the start, in one sentence that says what was expected, and leaves no files."""

import os

import pytest

from jsrl.cli import evaluate, main

RUN = [  # the arguments of `jsrl run`, and what the message names
    ("ppo_cartpol", "did you mean ppo_cartpole?"),
    ("--seed 3 ppo_cartpol", "did you mean ppo_cartpole?"),
    ("PPO", "did you mean ppo?"),
    ("--resume", "--resume needs a run"),
    ("ppo --resume one", "leave out the name ppo: `jsrl run --resume one`"),
    ("ppo_cartpole stray", "options begin with --"),
    ("--seeds 0-2", "give the name of an experiment before --seeds"),
    ("ppo_cartpole --xyzzy 3", "no option --xyzzy; --help-all"),
    ("ppo_cartpole --total-env-steps", "--total-env-steps needs a value"),
    ("ppo_cartpole --total-env-steps many", "'many'; expected a whole number"),
    ("ppo_cartpole --env.id Pong-v5", "Atari's as ALE/NAME-v5"),
    ("ppo_cartpole --seeds=", "--seeds is '', expected a range such as 0-4"),
    ("ppo_cartpole --run-name=", "'' cannot name a run"),
    ("ppo_cartpole --env.tasks hard", "environment 'CartPole-v1' takes no tasks"),
    (
        "ppo_cartpole --plan --supervision.restarts.actr 3",
        "names 'actr', which is no kind of worker; did you mean actor?",
    ),
    ("ppo_cartpole --director nothing", "set director of the Experiment in a config in Python"),
    ("ppo_cartpole --seeds 3-1", "expected a range such as 0-4"),
    ("ppo_cartpole --seeds 1,2,1", "names a seed twice"),
    ("ppo_cartpole --seeds 0-1 --jobs 0", "jobs is 0; it must be at least 1"),
    ("ppo_cartpole --seeds 0-1 --seed 3", "--seed and --seeds are given"),
    ("ppo_cartpole --seeds 0-1 --run-name a/b", "use letters, digits"),
    ("ppo_cartpole --seeds 0-1 --env.id nowhere:Env", "there is no module 'nowhere'"),
    ("ppo_cartpole --jobs 2", "--jobs is given, but it needs --seeds; add that, or leave out --jobs"),
    ("ppo_cartpole --seeds 0-1 --launcher slurm --tune", "--tune cannot be combined with --launcher slurm"),
    ("ppo_cartpole --seeds 0-1 --launcher slurm --num-hosts 2", "leave out --num-hosts"),
    ("ppo_cartpole --seeds 0-1 --launcher ray", "--launcher ray gives hosts to one run"),
    ("--resume nothing --seeds 0-1", "there is no run nothing"),
    ("ppo_cartpole --num-envs 7 --num-actors 2", "use num_actors 1 or 7, or num_envs 6 or 8"),
    ("ppo_cartpole --num-groups 5 --num-envs 16", "use num_groups 4 or 8"),
    ("ppo_cartpole --batch-envs 5 --num-envs 16", "batch_envs equal to num_envs"),
    ("ppo_cartpole --bind 203.0.113.9", "add --transport zeromq"),
    ("ppo_cartpole --bind 203.0.113.9 --transport zeromq", "give an address of this host"),
    ("ppo_cartpole --bind localhost --transport zeromq", "expected an IP address"),
    ("ppo_cartpole --bind 127.0.0.1:99999 --transport zeromq", "expected an IP address"),
    ("ppo_cartpole --encrypt", "add --transport zeromq"),
    ("ppo_cartpole --stop-at-return 400 --evaluator.enabled false", "set evaluator.enabled"),
    ("ppo_cartpole --learner.num-devices 3 --num-envs 16", "use 2 or 4 devices"),
    ("ppo_cartpole --agent.lr 0.1", "here it is called --agent.learning-rate"),
    (
        "r2d2 --agent.burn-in 100 --replay.window 40",
        "replay.window is 40, which leaves no row to learn from after agent.burn_in=100",
    ),
    ("ppo_cartpole --agent.num-minibatches 7 --num-envs 16", "use 4 or 8"),
    (
        "ppo_cartpole --agent.num-minibatches 3 --num-envs 16 --agent.network.core lstm",
        "16 environments of a batch; use 2 or 4",
    ),
    ("ppo --agent.num-minibatches 8 --agent.minibatch-size 64", "say the same in two ways; leave one of them out"),
    ("ppo_cartpole --agent.network.torso resnet", "did you mean 'impala_resnet'?"),
    ("ppo_cartpole --replay.kind host", "this experiment has no replay"),
    ("sac_pendulum --replay.capacity 10", "use at most replay.capacity, 10"),
    ("dqn --env.id Pendulum-v1", "use sac, td3 or ddpg"),
    ("ddpg --env.id CartPole-v1", "choose dqn or sac"),
    ("ppo --env.id Nope-v9", "nearest:"),
    ("ppo --env.id nowhere:Env", "there is no module 'nowhere'"),
    ("ppo --env.kwargs.colour red", "Check env.kwargs"),
    ("ppo --env.wrappers gymnasium.wrappers:FrameStackObservation", "Its arguments are given as --env.wrappers '[{"),
    ("ppo_cartpole --run-name a/b", "use letters, digits"),
    ("--resume nothing", "there is no run nothing"),
    ("ppo_cartpole --init-from nothing@best", "there is no run nothing"),
    ("ppo_cartpole --graph nothing", "expected module:function"),
    ("ppo_cartpole --graph nothing:at_all", "there is no module 'nothing' on sys.path"),
    ("ppo_cartpole --hooks nothing", 'expected "module:name"'),
    ("ppo_cartpole --hooks nothing:at_all", "there is no module 'nothing'"),
    ("ppo_cartpole --sinks nothing:at_all", "there is no module 'nothing'"),
    ("ppo_cartpole --wandb.project mine", "it needs --wandb.enabled; add that"),
    ("dqn --agent.value-max 5", "it needs --agent.num-atoms; add that"),
    ("dqn --agent.exploration ladder --agent.exploration-fraction 0.2", "it needs --agent.exploration linear"),
    ("sac --agent.no-learn-temperature --agent.target-entropy 1", "it needs --agent.learn-temperature"),
    ("sac --replay.alpha 0.5", "it needs --replay.prioritised"),
    ("sac --replay.threads 2", "it needs --replay.kind host"),
    ("ppo_cartpole --wandb --wandb.mode nowhere", "expected one of online, offline"),
    ("bc --recording nowhere", "holds no recording"),
    ("ppo_cartpole --tune --tune-minutes 0", "--tune-minutes is 0; it must be above 0 and finite"),
    ("ppo_cartpole --hosts-file hosts.json", "it needs --plan"),
    ("ppo_cartpole --plan --init-from absent@best", "there is no run absent"),
    ("ppo_cartpole --detach --plan", "--plan starts no process here"),
    ("ppo_cartpole --detach --launcher slurm", "leave out --detach"),
    ("ppo_cartpole --detach --run-name a/b", "use letters, digits"),
    ("ppo_cartpole --launcher ray --ray.gpus -1", "--ray.gpus is -1; it must be at least 0, or none"),
    ("ppo_cartpole --launcher slurm --slurm.cpus -2", "--slurm.cpus is -2; it must be at least 1, or none"),
    ("ppo_cartpole --listen 127.0.0.1 --join-s -1", "--join-s is -1; it must be at least 0"),
    ("ppo_cartpole --launcher ray --ray.place-s inf", "--ray.place-s is inf; it must be at least 0 and finite"),
    ("ppo_cartpole --tune --tune-minutes inf", "--tune-minutes is inf; it must be above 0 and finite"),
    ("ppo_cartpole --listen 0.0.0.0", "expected an IP address of this host"),
    ("ppo_cartpole --listen 203.0.113.9", "`hostname -I` lists those it has"),
    ("ppo_cartpole --listen 127.0.0.1 --num-hosts 0", "--num-hosts is 0; it must be at least 1"),
    ("ppo_cartpole --listen 127.0.0.1 --num-hosts 2 --min-hosts 0", "--min-hosts is 0; it must be at least 1, or none"),
    ("ppo_cartpole --hosts a;b", "expected hosts as ssh takes them"),
    ("ppo_cartpole --hosts a,me@a", "each once"),
    ("ppo_cartpole --hosts no-such-host.invalid", "cannot be resolved here"),
    ("ppo_cartpole --listen 127.0.0.1 --placement serial", "a serial run starts no workers"),
    ("ppo_cartpole --listen 127.0.0.1 --seeds 0-3", "other hosts serve one run"),
    ("ppo_cartpole --listen 127.0.0.1 --placement inline --join-s 0.1", "0 of 1 host joined within 0.1 s"),
]
OTHERS = [
    ("frobnicate", "there are: run,"),
    ("ppo_cartpole", "jsrl run ppo_cartpole"),
    ("evaluate nothing", "there is no run nothing"),
    ("watch --prot 3", "unrecognized arguments: --prot; did you mean --port?"),
    ("evaluate nothing --episodes many", "invalid int value: 'many'; `jsrl evaluate --help` lists the options"),
    ("evaluate nothing --episodes 0", "--episodes: 0, expected at least 1"),
    ("evaluate nothing --json none/facts.json", "make it, or give another file with --json"),
    ("evaluate nothing --against nothing@best", "there is no run nothing"),
    ("evaluate --tournament nothing", "there is no run nothing"),
    ("evaluate --against nothing", "expected RUN@TAG, alone or with --against, or --tournament"),
    ("export nothing policy.zip", "there is no run nothing"),
    ("evaluate nothing --show", "there is no run nothing"),
    ("evaluate nothing --show --seed -1", "--seed: -1, expected at least 0"),
    ("evaluate nothing --show --json facts.json", "a window shows one RUN@TAG"),
    ("evaluate nothing --show --speed 90", "--speed is 90, expected 0.0625 to 16"),
    ("status --follow", "--follow: expected RUN before it"),
    ("report nothing", "there is no run nothing"),
    ("record nothing", "--to"),
    ("record nothing --to there --seed -1", "seed is -1; it must be 0 or more"),
    ("tune nothing", "there is no experiment 'nothing'"),
    ("dev chaos nothing", "there is no experiment 'nothing'"),
    ("dev chaos ppo_cartpole --placement serial", "take --placement served, inline or apart"),
    ("dev chaos ppo_cartpole --detach", "--detach cannot be combined with jsrl dev chaos"),
    ("dev chaos ppo_cartpole --storm-s -1", "--storm-s is -1; it must be above 0 and finite"),
    ("dev chaos ppo_cartpole --pauses 2", "--pauses is 2; it must be from 0 to 1"),
    ("dev chaos ppo_cartpole --kinds actors", "--kinds names 'actors', which is no kind of worker; there are: actor,"),
    ("new 3d", "a letter first"),
    ("new class", "a word of Python's own"),
    ("status nothing", "there is no run nothing"),
    ("status", "give a RUN, or --runs-dir DIR"),
    ("logs nothing", "there is no run nothing"),
    ("logs nothing --lines -1", "--lines: -1, expected 0 or more"),
    ("stop nothing", "there is no run nothing"),
    ("stop nothing --wait nan", "--wait: nan, expected 0 or more"),
    ("join", "give the key file of a run, as `jsrl run --listen` prints it"),
    ("join nothing --cores -1", "--cores is -1, expected 0 or more"),
    ("join nothing --patience-s 0", "there was no key file nothing within 0 s"),
    ("list nothing", "unrecognized arguments: nothing"),
]


@pytest.mark.parametrize(("command", "sentence"), [*((f"run {c}", s) for c, s in RUN), *OTHERS])
def test_wrong_command_is_refused_in_one_sentence_and_leaves_no_files(command, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        status = main.main(command.split())
    except SystemExit as end:  # of argparse
        status = end.code
    told = capsys.readouterr().err.strip()
    assert status == 2
    assert sentence in told.splitlines()[-1]
    assert "Traceback" not in told and "usage" not in told
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--against", "b"], "interrupted (a@best: 3 of 10 games were finished)\n"),
        ([], "interrupted (no episodes were finished)\n"),
    ],
)
def test_an_interrupted_evaluation_says_so(words, text, monkeypatch, capsys):
    def play(options, env_words, counting):
        if options.against:
            counting.count("a@best", 3, 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "_one", play)
    assert evaluate.main(["a", *words]) == 130
    assert capsys.readouterr().err == text
