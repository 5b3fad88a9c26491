"""Names of config fields: what an unknown one may mean, here and in other libraries. Imported only for an unknown name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jsrl
from jsrl.fields import Option, options_of


class Elsewhere(NamedTuple):
    """What other libraries call an option: Stable-Baselines3 and its zoo, CleanRL, RLlib, Sample Factory, Tianshou.

    Attributes:
      here: the option; empty: there is none, and the note says what to do. names: elsewhere. note: how it differs.
    """

    here: str
    names: str
    note: str = ""


# Of several entries with a name, the first whose option the experiment has is meant. docs/coming_from.md agrees (a test).
TABLE = (
    Elsewhere(
        "total-env-steps", "total-timesteps timesteps n-timesteps num-timesteps train-for-env-steps stop-timesteps"
    ),
    Elsewhere("max-minutes", "train-for-seconds time-limit", "in minutes"),
    Elsewhere("stop-at-return", "stop-reward reward-threshold target-reward"),
    Elsewhere("seeds", "num-seeds n-seeds", "such as 0-4"),
    Elsewhere("env.id", "env env-id env-name environment task"),
    Elsewhere("env.kwargs", "env-kwargs env-config", "one by one: --env.kwargs.KEY VALUE"),
    Elsewhere("env.atari.stack", "frame-stack env-framestack framestack"),
    Elsewhere("env.atari.frame-skip", "frame-skip frameskip env-frameskip"),
    Elsewhere("num-envs", "n-envs nenvs num-env num-envs-per-worker num-envs-per-env-runner", "over all actors"),
    Elsewhere(
        "num-actors", "num-workers workers n-workers num-rollout-workers num-env-runners n-procs num-cpus vec-env"
    ),
    Elsewhere("learner.num-ranks", "num-learners num-learner-workers"),
    Elsewhere("learner.num-devices", "num-gpus num-devices n-gpus num-gpus-per-learner", "default: all that JAX sees"),
    Elsewhere("inference.device", "actor-device sampling-device worker-device"),
    Elsewhere("rollout-length", "n-steps num-steps rollout-fragment-length unroll-length rollout horizon t-max"),
    Elsewhere("rollout-length", "train-batch-size", "a batch has num-envs x rollout-length rows"),
    Elsewhere("replay.batch-size", "batch-size minibatch-size train-batch-size"),
    Elsewhere("agent.minibatch-size", "batch-size sgd-minibatch-size"),
    Elsewhere("batch-envs", "batch-size", "in environments"),
    Elsewhere("agent.num-epochs", "n-epochs update-epochs num-sgd-iter epochs ppo-epochs"),
    Elsewhere("agent.learning-rate", "lr policy-lr actor-lr"),
    Elsewhere("agent.critic-learning-rate", "q-lr critic-lr"),
    Elsewhere("agent.schedule", "anneal-lr lr-schedule", "constant or linear"),
    Elsewhere("agent.optimizer", "optimizer-class"),
    Elsewhere("agent.adam-eps", "adam-epsilon"),
    Elsewhere("agent.gamma", "discount"),
    Elsewhere("agent.gae-lambda", "lambda lambda-"),
    Elsewhere("agent.clip-ratio", "clip-range clip-coef clip-param ppo-clip-ratio clip-eps eps-clip"),
    Elsewhere("agent.value-clip", "clip-range-vf vf-clip-param clip-vloss ppo-clip-value"),
    Elsewhere("agent.entropy-coef", "ent-coef entropy-coeff exploration-loss-coeff entropy"),
    Elsewhere("agent.temperature", "ent-coef alpha entropy-coef", "fixed with --agent.no-learn-temperature"),
    Elsewhere("agent.learn-temperature", "autotune auto-alpha"),
    Elsewhere("agent.value-coef", "vf-coef vf-loss-coeff value-loss-coeff", "the squared error is halved"),
    Elsewhere("agent.max-grad-norm", "grad-clip"),
    Elsewhere("agent.target-kl", "kl-target"),
    Elsewhere("agent.normalize-advantages", "norm-adv normalize-advantage", "true, false or minibatch"),
    Elsewhere("agent.normalize-observations", "normalize norm-obs normalize-input observation-filter"),
    Elsewhere("env.reward-scale", "norm-reward normalize-reward", "running"),
    Elsewhere("agent.normalize-values", "normalize-returns"),
    Elsewhere("agent.network.hidden", "policy-kwargs net-arch hidden-sizes fcnet-hiddens hidden-size layers"),
    Elsewhere("agent.network.activation", "activation-fn nonlinearity fcnet-activation"),
    Elsewhere("agent.network.init", "ortho-init orthogonal-init"),
    Elsewhere("agent.network.noise-period", "use-sde sde-sample-freq sde", "rows between draws"),
    Elsewhere("agent.network.torso", "policy encoder-conv-architecture"),
    Elsewhere("agent.network.core", "use-rnn use-lstm recurrent rnn-type lstm", "gru or lstm"),
    Elsewhere("agent.network.core-size", "rnn-size lstm-cell-size lstm-hidden-size"),
    Elsewhere("agent.chunk-length", "recurrence max-seq-len seq-len"),
    Elsewhere("agent.tau", "polyak"),
    Elsewhere("agent.target-env-steps", "target-update-interval target-network-frequency target-update-freq"),
    Elsewhere("agent.target-period", "target-update-interval target-network-frequency", "in updates"),
    Elsewhere("agent.exploration-fraction", "epsilon-timesteps", "a share of the run"),
    Elsewhere("agent.epsilon", "exploration-final-eps end-e eps-end final-epsilon"),
    Elsewhere("agent.exploration-noise", "action-noise noise-std"),
    Elsewhere("agent.policy-delay", "policy-frequency"),
    Elsewhere("replay.capacity", "buffer-size memory-size replay-buffer-size"),
    Elsewhere("replay.min-size", "learning-starts warmup-steps random-steps"),
    Elsewhere(
        "replay.updates-per-env-step",
        "train-freq train-frequency gradient-steps training-intensity replay-ratio utd-ratio",
        "gradient steps / env steps between them",
    ),
    Elsewhere("replay.save", "save-replay-buffer"),
    Elsewhere("deterministic", "torch-deterministic"),
    Elsewhere("placement", "serial-mode local-mode", "serial: all in one process"),
    Elsewhere(
        "runs-dir", "tensorboard-log log-dir logdir log-folder save-path save-dir output-dir local-dir train-dir"
    ),
    Elsewhere("run-name", "name wandb-name exp-name experiment experiment-name tb-log-name run-id"),
    Elsewhere("resume", "restart-behavior restore resume-from"),
    Elsewhere("init-from", "trained-agent load load-path load-model checkpoint load-checkpoint pretrained", "RUN@TAG"),
    Elsewhere("snapshots.period-s", "checkpoint-freq save-freq save-interval save-every save-every-sec", "in seconds"),
    Elsewhere("snapshots.keep", "keep-checkpoints num-to-keep keep-checkpoints-num"),
    Elsewhere("evaluator.period-env-steps", "eval-freq evaluation-interval eval-interval eval-every", "in env steps"),
    Elsewhere("evaluator.episodes", "n-eval-episodes eval-episodes evaluation-duration num-eval-episodes"),
    Elsewhere("evaluator.num-envs", "n-eval-envs num-eval-envs"),
    Elsewhere("display", "verbose progress progress-bar log-level quiet", "live, plain, quiet or log-only"),
    Elsewhere("wandb.enabled", "track with-wandb use-wandb"),
    Elsewhere("wandb.project", "wandb-project-name wandb-project"),
    Elsewhere("wandb.entity", "wandb-entity wandb-user"),
    Elsewhere("wandb.group", "wandb-group"),
    Elsewhere("video.enabled", "capture-video record-video save-video video"),
    Elsewhere("video.period-env-steps", "video-freq video-interval record-video-frequency", "in env steps"),
    Elsewhere(
        "",
        "device cuda gpu gpus use-gpu gpu-id no-cuda cpu",
        "JAX uses the accelerators that it sees: set JAX_PLATFORMS=cpu for none, CUDA_VISIBLE_DEVICES=0 for the first.",
    ),
    Elsewhere("", "algo algorithm agent", "the algorithm is the first word: `jsrl run ppo`; `jsrl list` names them."),
    Elsewhere("", "render render-mode human", "`jsrl evaluate RUN --show` shows a policy, --video.enabled films it."),
    Elsewhere("", "n-trials optimize optimize-hyperparameters num-samples", "`jsrl search` varies hyperparameters."),
    Elsewhere("", "save-model save-best", "the best, the latest and the final params are always kept, as RUN@best."),
    Elsewhere("", "framework backend torch", "there is one: JAX."),
)


def elsewhere(name: str) -> list[Elsewhere]:
    """Return what a name of another library may mean here: `n-steps`, or a field `n_steps`."""
    name = name.rpartition(".")[2].replace("_", "-")
    return [entry for entry in TABLE if name in entry.names.split()]


def suggestion(name: str, names: Collection[str]) -> str:
    """Return which of a class's fields may be meant, as text."""
    paths = [entry.here.replace("-", "_").split(".") for entry in elsewhere(name)]
    found = [own for path in paths for own in (".".join(path), path[-1]) if path[0] in names or own in names]
    near = found or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}."


def unknown_option(name: str, options: Mapping[str, Option]) -> str:
    """Return what to do instead of giving an option that there is not, as the end of a sentence."""
    if text := _of_elsewhere(name, options):
        return f"; {text}"
    if name in options:
        return f": set {name.replace('-', '_')} of the Experiment in a config in Python (configs/NAME.py)."
    off = options.get(name.partition(".")[0]) or options.get(name.rpartition(".")[0])
    if off is not None and off.default is None and "." in name and "agent" in {n.partition(".")[0] for n in options}:
        return f": this experiment has no {off.name}."
    part, _, last = name.rpartition(".")
    is_absent = part.rpartition(".")[2] in ("", "agent") and not any(known.endswith(f".{last}") for known in options)
    if others := _agents_with(last.replace("-", "_")) if is_absent else []:
        return f": the algorithm of this experiment has none; {', '.join(others)} have it, as --agent.{last}."
    hint = " or ".join(f"--{n}" for n in _nearest(name, options))
    return f"; did you mean {hint}?" if hint else "; --help-all lists all."


def unknown_field(name: str, config: Any) -> str:
    """Return which of a config's fields, or of its parts', may be meant, as the end of a sentence."""
    option, options = name.replace("_", "-"), options_of(config)
    usual = [entry.here for entry in elsewhere(option) if entry.here in options][:1] or _nearest(option, options)
    return f"; did you mean {' or '.join(usual).replace('-', '_')}?" if usual else "."


def _of_elsewhere(name: str, options: Mapping[str, Option]) -> str:
    """Return what to give instead of an option of another library or of each policy, as text; empty: nothing is known."""
    entries = elsewhere(name)
    meant = [entry for entry in entries if entry.here in options]
    if meant:
        note = f" ({meant[0].note})" if meant[0].note else ""
        return f"here it is called --{meant[0].here}{note}."
    for here in (name, *(entry.here for entry in entries)):
        if own := [known for known in options if known.startswith("policies.") and known.endswith(f".{here}")]:
            return f"each policy has its own: --{' or --'.join(own)}."
    if not entries:
        return ""
    absent = " or ".join(f"--{entry.here}" for entry in entries)
    return f"it would be {absent}, which this experiment does not have." if entries[0].here else entries[0].note


def _agents_with(field: str) -> list[str]:
    """Return the algorithms of jsrl whose configs have a field."""
    configs = [getattr(jsrl, name) for name in dir(jsrl) if name.endswith("Config")]
    agents = [config for config in configs if hasattr(config, "factory")]
    return [a.factory.partition(":")[2] for a in agents if field in {f.name for f in dataclasses.fields(a)}]


def _nearest(name: str, options: Mapping[str, Option]) -> list[str]:
    """Return the names of at most two options that look like `name`, with or without the part before their last dot."""
    options = {known: option for known, option in options.items() if option.offered}
    if same := [known for known in options if known.rpartition(".")[2] == name]:
        return same[:2]
    tails = {known.rpartition(".")[2]: known for known in reversed(list(options))}
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
    near += [tails[t] for t in difflib.get_close_matches(name.rpartition(".")[2], tails, n=2, cutoff=0.6)]
    return list(dict.fromkeys(near))[:2]
