#!/bin/bash
# @title@. Submit it with:
@submit@
# Submit it again to go on after a time limit: runs that have ended stay as they are, the others continue.
@directives@

folder=@folder@
@setup@
@job@

if @ended@ "$folder"; then exit 0; fi
if [ -e "$folder/snapshots/state/tags/latest.json" ]; then begin=(--resume "$folder"); else begin=(@new@); fi
@run@ --display plain & child=$!
await_child
@report@  # of all runs that have begun; the last one prints the whole table
[ -z "$stopped" ] || requeue_if_preempted
exit "$status"
