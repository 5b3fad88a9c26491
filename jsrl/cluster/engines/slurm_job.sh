if [ -n "${SLURM_SHARDS_ON_NODE-}" ] && [ -z "${XLA_PYTHON_CLIENT_MEM_FRACTION-}" ]; then
  part=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/([^)]*)//g; s/^ *Gres=//p' | tr , '\n' | awk -F: '
    $1 == "gpu" {gpus += $NF} $1 == "shard" {shards += $NF}
    END {if (shards) printf "%.3f", 0.9 * ENVIRON["SLURM_SHARDS_ON_NODE"] * gpus / shards}')
  [ -z "$part" ] || export XLA_PYTHON_CLIENT_MEM_FRACTION=$part  # of the GPU of which this job has a part
fi
child= stopped= interrupted=130
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID-}}
await_child() {  # sets its status; a signal interrupts `wait`
  local seen=none
  until [ "$seen" = "$stopped" ]; do seen=$stopped; wait "$child"; status=$?; done
  [ "$status" != 130 ] || status=$interrupted
}
is_preempted() { scontrol -o show job "$job" 2>/dev/null | grep -q 'JobState=RUNNING .*PreemptTime=[0-9]'; }
requeue_if_preempted() {  # a job that ends within GraceTime is not requeued by Slurm
  if is_preempted; then echo "jsrl: Slurm preempts job $job, which goes back to the queue"; scontrol requeue "$job"; fi
}
trap 'stopped+=1 interrupted=0' TERM  # which Slurm sends to all processes of a job, for scancel
trap 'stopped+=1; [ -z "$child" ] || kill -TERM "$child"' USR1  # before the time limit or a preemption, to this shell alone
(  # Slurm announces a preemption only to steps of a job. This step waits for that.
  unset -v $(compgen -e SLURM_ | grep -vxE 'SLURM_(CONF|JOB_ID)')  # options of the job, such as its GPUs per node
  srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=0 --gres=none --job-name=jsrl-notice sleep infinity
  is_preempted && kill -USR1 $$
) >/dev/null 2>&1 </dev/null &
