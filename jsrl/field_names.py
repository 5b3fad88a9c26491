"""Names of config fields: suggestions for wrong ones, and what other libraries call them."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import NamedTuple


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
    Elsewhere("run-name", "name exp-name experiment experiment-name tb-log-name run-id"),
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
    Elsewhere("wandb.name", "wandb-name wandb-job-type"),
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
