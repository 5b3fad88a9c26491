#!/bin/bash
# @title@. Submit it twice from one folder; the second time for the actor hosts:
@submit@
# Submit both again to go on after a time limit: the run continues from its last snapshot.
@directives@

key=@key@  # with which hosts join
folder=@folder@
@setup@
@job@

if [ -n "$SLURM_ARRAY_TASK_ID" ]; then  # an actor host: it stays until the run has ended, also while that is requeued
  failed=0 seen=$SECONDS  # ends within 60 s in a row; when it was last in the run, for at least 180 s
  while [ -z "$stopped" ] && [ ! -e "$key.ended" ]; do
    begun=$SECONDS
    @join@ & child=$!
    await_child
    [ "$status" != @replaced@ ] || break  # by the same job, requeued: Slurm had lost this one
    [ $((SECONDS - begun)) -lt 180 ] || seen=$SECONDS
    queue=$(squeue --me -h -n @job_name@ -o %i 2>/dev/null) && [ -z "$queue" ] && why="its job neither waits nor runs" || why=
    [ $((SECONDS - seen)) -lt 1800 ] || why="it was not there for 1800 s"
    if [ -n "$why" ] && [ -z "$stopped" ] && [ ! -e "$key.ended" ]; then
      echo "jsrl: this host leaves the run, because $why. Submit the script again for hosts when it goes on" >&2
      exit 0
    fi
    if [ "$status" != 0 ] && [ $((SECONDS - begun)) -lt 60 ]; then failed=$((failed + 1)); else failed=0; fi
    if [ "$failed" = 5 ] && [ -z "$stopped" ]; then
      again="scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
      echo "jsrl: this host could not join the run 5 times in a row, for the reason above. Repair it; then: $again" >&2
      exit 1
    fi
    [ -n "$stopped" ] || [ -e "$key.ended" ] || sleep 5
  done
  [ -z "$stopped" ] || requeue_if_preempted
  exit 0
fi

mkdir -p "${key%/*}" && rm -f "$key" "$key.ended"
if [ -e "$folder/snapshots/state/tags/latest.json" ]; then begin=(--resume "$folder"); else begin=(@new@); fi
address=${JSRL_ADDRESS:-$(hostname -I | cut -d' ' -f1)}  # of this host, as the others reach it
@run@ --runs-dir @runs_dir@ --display plain \
  --listen "$address" --num-hosts @num_hosts@ --join-key "$key" --join-s 86400 & child=$!
await_child
if [ -z "$stopped" ] || [ -e "$folder/stop.json" ]; then  # `jsrl stop` ends it for good
  touch "$key.ended"
else
  requeue_if_preempted
fi
exit "$status"
